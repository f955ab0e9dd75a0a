// The page's start: views, the key, and the wait while the server loads its model.

import { getJson, key, setKey } from "./api.js";
import * as chat from "./chat.js";
import { byId } from "./dom.js";
import * as engine from "./engine.js";
import * as models from "./models.js";
import * as settings from "./settings.js";

const VIEWS = { chat: () => {}, engine: engine.open, models: models.open };
const STARTUP_MS = 500;

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

function askForKey(reason) {
  if (reason) byId("key-reason").textContent = reason;
  byId("key").value = key();
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

function setUpKey() {
  byId("change-key").addEventListener("click", () => askForKey());
  byId("forget-key").addEventListener("click", () => {
    setKey("");
    byId("key-dialog").close();
  });
  byId("key-form").addEventListener("submit", () => {
    setKey(byId("key").value.trim());
    begin();
  });
  addEventListener("needs-key", () => askForKey(key()
    ? "The server does not take this key."
    : "This server takes requests with a key. It stays in this tab, and goes to this server and nowhere else."));
}

/** True once the server is ready; until then its progress is shown. */
async function isReady() {
  try {
    const { phase, fraction } = await getJson("startupz");
    byId("startup").hidden = fraction >= 1;
    byId("startup-phase").textContent = `The server is starting: ${phase}`;
    byId("startup-progress").value = fraction;
    return fraction >= 1;
  } catch (error) {
    byId("startup").hidden = false;
    byId("startup-phase").textContent = error.message;
    return false;
  }
}

async function begin() {
  while (!(await isReady())) await new Promise((resolve) => setTimeout(resolve, STARTUP_MS));
  try {
    const cards = await models.load();
    settings.setModels(cards.map((card) => card.id));
    models.show(cards);
    document.title = `${cards[0].id} · Weft`;
    byId("to-docs").hidden = key() !== ""; // a link carries no key
    showView();
  } catch (error) {
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
    else byId("status").textContent = error.message;
  }
}

settings.setUp();
chat.setUp();
engine.setUp();
setUpKey();
addEventListener("hashchange", showView);
showView();
begin();
