// What goes into a request beside its messages. Each chat has settings of its own; a new one begins with those shown.

import { byId, make } from "./dom.js";
import { model } from "./modelmenu.js";

const STORE = "weft.settings"; // those of this tab, for its next chat
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05], ["top_p", "Top p", 0, 1, 0.01], ["top_k", "Top k", -1, null, 1],
  ["min_p", "Min p", 0, 1, 0.01], ["max_tokens", "Most tokens", 1, null, 1], ["seed", "Seed", null, null, 1],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1], ["frequency_penalty", "Frequency penalty", -2, 2, 0.1],
  ["repetition_penalty", "Repetition penalty", 0, 2, 0.05],
];
const KEPT = ["system", "stops", "schema", "tools", "with-tokens", "two-answers", ...NUMBERS.map(([name]) => name)];

export function setUp() {
  byId("numbers").append(...NUMBERS.map(([id, label, min, max, step]) =>
    make("div", {}, make("label", { htmlFor: id }, label),
      make("input", { id, type: "number", min: min ?? "", max: max ?? "", step, placeholder: "default" }))));
  show(JSON.parse(sessionStorage.getItem(STORE) ?? "{}"));
  for (const id of KEPT) byId(id).addEventListener("change", changed);
  byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
  byId("to-settings").addEventListener("click", () => byId("settings").showModal());
  byId("close-settings").addEventListener("click", () => byId("settings").close());
}

const property = (id) => byId(id).type === "checkbox" ? "checked" : "value";

export const values = () => Object.fromEntries(KEPT.map((id) => [id, byId(id)[property(id)]]));

export function show(stored) {
  for (const id of KEPT) byId(id)[property(id)] = stored[id] ?? (property(id) === "checked" ? false : "");
}

function changed() {
  sessionStorage.setItem(STORE, JSON.stringify(values()));
  dispatchEvent(new CustomEvent("settings-changed"));
}

/** The fields of a request; null where a text of JSON cannot be read, which is then said beside it. */
export function request() {
  const schema = json("schema", (value) => typeof value === "object" && value !== null && !Array.isArray(value),
    "a JSON schema is an object");
  const tools = json("tools", Array.isArray, "tools are a list");
  if (schema === null || tools === null) return null;
  const body = { model: model(), stream: true, stream_options: { include_usage: true } };
  for (const [name] of NUMBERS) {
    const text = byId(name).value.trim();
    if (text !== "") body[name] = Number(text);
  }
  const stops = byId("stops").value.split("\n").filter((line) => line !== "");
  if (stops.length) body.stop = stops;
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (tools?.length) body.tools = tools;
  if (byId("two-answers").checked) body.n = 2;
  if (byId("with-tokens").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

/** What a field's JSON says: undefined where it is empty, null where it is wrong. */
function json(id, isRight, rule) {
  const text = byId(id).value.trim();
  byId(`${id}-error`).textContent = "";
  byId(id).removeAttribute("aria-invalid");
  if (!text) return undefined;
  let problem = rule;
  try {
    const value = JSON.parse(text);
    if (isRight(value)) return value;
  } catch (error) {
    problem = error.message;
  }
  if (!byId("settings").open) byId("settings").showModal();
  byId(`${id}-error`).textContent = problem;
  byId(id).setAttribute("aria-invalid", "true");
  byId(id).focus();
  return null;
}
