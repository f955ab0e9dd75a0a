// The page at /: its views.

import * as chat from "./chat.js";
import * as chatlist from "./chatlist.js";
import { byId } from "./dom.js";
import * as engine from "./engine.js";
import * as modelmenu from "./modelmenu.js";
import * as models from "./models.js";
import * as settings from "./settings.js";
import { start, untilReady } from "./start.js";
import * as tasks from "./tasks.js";

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
  byId("main").tabIndex = shown === "chat" ? -1 : 0; // what scrolls can be reached by keys
}

async function begin() {
  await untilReady();
  try {
    const cards = await models.load();
    modelmenu.show(cards);
    models.show(cards);
    showView();
  } catch (error) {
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
    else byId("status").textContent = error.message;
  }
}

addEventListener("model-changed", () => { document.title = `${modelmenu.model()} · Weft`; });
settings.setUp();
tasks.setUp();
modelmenu.setUp();
chat.setUp();
engine.setUp();
chatlist.setUp();
addEventListener("hashchange", showView);
showView();
start(begin);
