// Texts by class, with the probability of each.

import { send } from "./api.js";
import { make } from "./dom.js";
import { model } from "./modelmenu.js";
import { lines, onSubmit } from "./work.js";

export const setUp = () => onSubmit("classify", async (signal) => {
  const texts = lines("classify-texts");
  const response = await send("classify", { body: { model: model(), input: texts }, signal });
  const { data } = await response.json();
  const rows = data.map(({ label, probs, index }) => make("tr", {}, make("td", {}, texts[index]),
    make("td", {}, make("strong", {}, label ?? "–")), make("td", {}, `${(100 * Math.max(...probs)).toFixed(1)} %`)));
  const head = ["Text", "Class", "Probability"].map((text) => make("th", { scope: "col" }, text));
  return [make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Classes" },
    make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)))];
});
