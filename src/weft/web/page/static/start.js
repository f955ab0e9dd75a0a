// How every page begins: with the key, where the server has one, and the wait while it loads its model.

import { getJson, key, setKey } from "./api.js";
import { byId, bytes, make, number } from "./dom.js";

const STARTUP_MS = 500;

const phaseLabel = make("label", { id: "startup-phase", htmlFor: "startup-progress" }, "The server is starting");
const progress = make("progress", { id: "startup-progress", max: 1, value: 0 });
const startup = make("div", { id: "startup", className: "notice", role: "status", hidden: true }, phaseLabel, progress);

const reasonText = make("p", { id: "key-reason" },
  "It stays in this tab, and goes with every request to this server and nowhere else.");
const keyField = make("input", { id: "key", type: "password", autocomplete: "off", spellcheck: false });
const forget = make("button", { type: "button", id: "forget-key" }, "Forget it");
const form = make("form", { id: "key-form", method: "dialog" },
  make("h2", { id: "key-title" }, byId("change-key").textContent), reasonText, make("label", { htmlFor: "key" }, "Key"), keyField,
  make("p", { className: "row" }, make("button", { type: "submit", className: "primary" }, "Use it"), " ", forget));
const dialog = make("dialog", { id: "key-dialog", "aria-labelledby": "key-title" }, form);
byId("main").before(startup, dialog);

/** Begin, and again whenever the reader gives a key. */
export function start(begin) {
  byId("change-key").addEventListener("click", () => requestKey());
  forget.addEventListener("click", () => {
    setKey("");
    dialog.close();
  });
  form.addEventListener("submit", () => {
    setKey(keyField.value.trim());
    begin();
  });
  addEventListener("needs-key", () => requestKey(key()
    ? "The server does not take this key."
    : "This server takes requests with a key. It stays in this tab, and goes to this server and nowhere else."));
  begin();
}

function requestKey(reason) {
  if (reason) reasonText.textContent = reason;
  keyField.value = key();
  if (!dialog.open) dialog.showModal();
}

/** Once the server is ready; until then its progress is shown. */
export async function untilReady() {
  while (!(await isReady())) await new Promise((resolve) => setTimeout(resolve, STARTUP_MS));
}

/** What there is to say of the weights that are loaded. */
function amount(loading) {
  if (!loading) return "";
  const { loaded_bytes: loaded, total_bytes: total, bytes_per_second: pace, seconds_left: left } = loading;
  const rest = left === null ? "" : `, ${bytes(pace)}/s, ${number(left)} s left`;
  return `, ${bytes(loaded)} of ${bytes(total)}${rest}`;
}

async function isReady() {
  try {
    const { phase, fraction, loading } = await getJson("startupz");
    startup.hidden = fraction >= 1;
    phaseLabel.textContent = `The server is starting: ${phase}${amount(loading)}`;
    progress.value = fraction;
    return fraction >= 1;
  } catch (error) {
    startup.hidden = false;
    phaseLabel.textContent = error.message;
    return false;
  }
}
