// The page at /: its views.

import * as chat from "./chat.js";
import { byId } from "./dom.js";
import * as engine from "./engine.js";
import * as models from "./models.js";
import * as pictures from "./pictures.js";
import * as settings from "./settings.js";
import { start, untilReady } from "./start.js";

const VIEWS = { chat: () => {}, engine: engine.open, models: models.open };

function showView() {
  const wanted = location.hash.slice(1);
  const shown = Object.hasOwn(VIEWS, wanted) ? wanted : "chat";
  for (const [name, open] of Object.entries(VIEWS)) {
    const isShown = name === shown;
    byId(name).hidden = !isShown;
    if (isShown) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
    open(isShown);
  }
}

async function begin() {
  await untilReady();
  try {
    const cards = await models.load();
    settings.setModels(cards.map((card) => card.id));
    models.show(cards);
    pictures.follow(settings.model());
    document.title = `${cards[0].id} · Weft`;
    showView();
  } catch (error) {
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
    else byId("status").textContent = error.message;
  }
}

settings.setUp();
chat.setUp();
engine.setUp();
addEventListener("hashchange", showView);
byId("model").addEventListener("change", () => pictures.follow(settings.model()));
showView();
start(begin);
