// The menu of models: the one that is used, the state of each, and their memory where a server has several.

import { send } from "./api.js";
import { button, byId, bytes, make } from "./dom.js";
import * as models from "./models.js";

const PERIOD_MS = 1000; // while the menu is open
const WORDS = { unloaded: "not in memory", loading: "loading…", ready: "in memory", unloading: "unloading…", failed: "failed" };

let cards = [];
let timer = null;

export const model = () => byId("model").value;

export function setUp() {
  const menu = byId("model-menu");
  menu.addEventListener("toggle", ({ newState }) => {
    byId("model").setAttribute("aria-expanded", String(newState === "open"));
    clearTimeout(timer);
    if (newState === "open") refresh();
  });
}

/** Show these models; the one that was used stays. */
export function show(given) {
  cards = given;
  if (!cards.some(({ id }) => id === model())) use(cards[0]?.id ?? "");
  if (byId("model-menu").contains(document.activeElement)) keepFocus(draw);
  else draw();
}

/** Use another model. */
export function use(name) {
  if (name === model() || (name && !cards.some(({ id }) => id === name))) return;
  byId("model").value = name;
  byId("model-name").textContent = name;
  dispatchEvent(new CustomEvent("model-changed"));
}

function keepFocus(change) {
  const { dataset: { id }, ariaLabel } = document.activeElement;
  change();
  const isSame = (one) => id ? one.dataset.id === id : one.ariaLabel === ariaLabel;
  [...byId("model-menu").querySelectorAll("button")].find(isSame)?.focus();
}

function draw() {
  byId("model-list").replaceChildren(...cards.map(row));
}

function row(card) {
  const { id, state, size_bytes: size, is_pinned: isPinned, parent } = card;
  const facts = [parent && `adapter of ${parent}`, WORDS[state] ?? state, size && bytes(size), isPinned && "pinned"].filter(Boolean).join(" · ");
  const isUsed = id === model();
  const choose = make("button", { type: "button", className: "model-row", "data-id": id, "aria-current": isUsed ? "true" : null,
    onclick: () => {
      use(id);
      byId("model-menu").hidePopover();
      byId("message").focus();
    } }, make("strong", {}, id), make("span", { className: "soft" }, facts));
  return make("li", {}, choose, parent ? null : memory(card), card.error ? make("p", { className: "error" }, card.error) : null);
}

/** Loads a model, or unloads it. Both are calls of Ollama's API without a prompt, which need no control key. */
function memory({ id, state, is_pinned: isPinned }) {
  if (state === "unloaded" || state === "failed") return button("Load", () => keep(id), { "aria-label": `Load ${id}` });
  if (state === "ready" && !isPinned) return button("Unload", () => keep(id, 0), { "aria-label": `Unload ${id}` });
  return null;
}

async function keep(name, keepAlive) {
  const note = byId("model-note");
  note.textContent = keepAlive === 0 ? `${name} is unloaded once its requests have ended.` : `${name} is being loaded.`;
  try {
    await send("api/generate", { body: { model: name, stream: false, keep_alive: keepAlive } });
    note.textContent = "";
  } catch (error) {
    const card = (await models.load().catch(() => [])).find(({ id }) => id === name);
    note.textContent = keepAlive !== 0 && card?.state === "ready" ? "" : error.message; // one that embeds is loaded all the same
  }
}

async function refresh() {
  try {
    show(await models.load());
  } catch (error) {
    byId("model-note").textContent = error.message;
  }
  if (byId("model-menu").matches(":popover-open") && cards.some(({ state }) => state)) timer = setTimeout(refresh, PERIOD_MS);
}
