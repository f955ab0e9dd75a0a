// Documents by how well they answer a question.

import { send } from "./api.js";
import { byId, make } from "./dom.js";
import { model } from "./modelmenu.js";
import { lines, onSubmit } from "./work.js";

export const setUp = () => onSubmit("rank", async (signal) => {
  const documents = lines("rank-documents");
  const query = byId("rank-query").value.trim();
  if (!query) throw new Error("Write a question first.");
  const response = await send("v1/rerank", { body: { model: model(), query, documents }, signal });
  const { results } = await response.json();
  const rows = results.map(({ index, relevance_score: score }, place) => make("tr", {}, make("td", {}, String(place + 1)),
    make("td", {}, documents[index]), make("td", {}, score.toFixed(4)),
    make("td", {}, make("meter", { min: Math.min(0, ...results.map((one) => one.relevance_score)),
      max: Math.max(1, ...results.map((one) => one.relevance_score)), value: score, "aria-label": "Score" }))));
  const head = ["Rank", "Document", "Score"].map((text) => make("th", { scope: "col" }, text));
  return [make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Ranking" },
    make("table", {}, make("thead", {}, make("tr", {}, head, make("th", { scope: "col" }, make("span", { className: "unseen" }, "Score as a bar")))),
      make("tbody", {}, rows)))];
});
