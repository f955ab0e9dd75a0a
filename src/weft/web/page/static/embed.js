// Texts as vectors, and how alike each pair of them is.

import { send } from "./api.js";
import { copy } from "./copy.js";
import { button, make, number } from "./dom.js";
import { model } from "./modelmenu.js";
import { lines, onSubmit } from "./work.js";

const SHOWN = 8; // numbers of a vector
const MAX_COMPARED = 30; // texts in the table

export const setUp = () => onSubmit("embed", async (signal) => {
  const texts = lines("embed-texts");
  const response = await send("v1/embeddings", { body: { model: model(), input: texts }, signal });
  const { data, usage } = await response.json();
  const vectors = data.map(({ embedding }) => embedding);
  return [make("p", { className: "soft" }, `${number(vectors[0].length)} numbers for each text, ${number(usage.prompt_tokens)} tokens in all.`),
    texts.length > 1 ? compared(texts.slice(0, MAX_COMPARED), vectors) : null,
    make("h3", {}, "Vectors"), ...texts.map((text, i) => vector(text, vectors[i]))].filter(Boolean);
});

function cosine(a, b) {
  let [dot, first, second] = [0, 0, 0];
  for (let i = 0; i < a.length; i += 1) {
    dot += a[i] * b[i];
    first += a[i] ** 2;
    second += b[i] ** 2;
  }
  return dot / Math.sqrt(first * second) || 0;
}

function compared(texts, vectors) {
  const cell = (i, j) => {
    const likeness = cosine(vectors[i], vectors[j]);
    const one = make("td", { className: "likeness" }, likeness.toFixed(3));
    one.style.setProperty("--share", Math.max(0, likeness).toFixed(3));
    return one;
  };
  const head = make("tr", {}, make("th", { scope: "col" }, "Cosine"), texts.map((_, i) => make("th", { scope: "col" }, String(i + 1))));
  const rows = texts.map((text, i) => make("tr", {}, make("th", { scope: "row", className: "cut", title: text }, `${i + 1} ${text}`),
    texts.map((_, j) => cell(i, j))));
  return make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "How alike the texts are" },
    make("table", {}, make("caption", {}, "How alike the texts are: 1 is the same direction, 0 has nothing in common."),
      make("thead", {}, head), make("tbody", {}, rows)));
}

function vector(text, numbers) {
  const one = button("Copy the vector", async () => {
    one.textContent = (await copy(JSON.stringify(numbers))) ? "Copied" : "Copy the vector";
  }, { "aria-label": `Copy the vector of ${text}` });
  return make("p", {}, make("span", {}, text), make("br"),
    make("code", {}, `[${numbers.slice(0, SHOWN).map((value) => value.toFixed(4)).join(", ")}, …]`), " ", one);
}
