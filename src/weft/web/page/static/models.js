// The names the server answers to, its adapters, and what the engine runs with.

import { getJson, send } from "./api.js";
import { byId, facts, make, number } from "./dom.js";

export async function load() {
  const response = await send("v1/models");
  showRouting(Number(response.headers.get("x-weft-routing-port")));
  return (await response.json()).data;
}

/** Behind a picker the gateway says at which port of its host the picker's own page is. */
function showRouting(port) {
  if (!port) return;
  const url = new URL("/", location.href);
  url.port = port;
  byId("to-routing").href = url.href;
  byId("to-routing").hidden = false;
}

export function show(cards) {
  const base = cards.filter((card) => card.parent === null);
  byId("cards").replaceChildren(...base.map((card) => cardOf(card, [])));
  const adapters = cards.filter((card) => card.parent !== null);
  byId("adapters").replaceChildren(...(adapters.length
    ? adapters.map((card) => cardOf(card, [["Adapter of", card.parent]]))
    : [make("p", { className: "soft" }, "None are loaded.")]));
}

function cardOf(card, more) {
  return make("div", { className: "panel" }, make("h4", {}, card.id), make("dl", { className: "facts" }, ...facts([
    ["From", card.root], ["Context", `${number(card.max_model_len)} tokens`],
    ["Served since", new Date(1000 * card.created).toLocaleString()], ...more])));
}

/** What the engine runs with is asked for when somebody looks. */
export async function open(isShown) {
  if (!isShown) return;
  try {
    show(await load());
    const { version, config } = await getJson("server_info");
    const sections = Object.entries(config).map(([name, value]) => section(name, value));
    byId("server-info").replaceChildren(make("p", { className: "soft" }, `Weft ${version}`), ...sections);
    byId("models-error").textContent = "";
  } catch (error) {
    byId("models-error").textContent = error.message;
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
  }
}

function section(name, value) {
  const pairs = value !== null && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [["value", value]];
  const texts = pairs.map(([key, one]) => [key, typeof one === "string" ? one : JSON.stringify(one)]);
  return make("details", {}, make("summary", {}, name), make("dl", { className: "facts" }, ...facts(texts)));
}
