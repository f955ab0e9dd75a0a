// A form that sends its fields and shows what comes back; common to all views of models that do not chat.

import { byId } from "./dom.js";

/** `act(signal)` resolves to the nodes of the result; it throws what is wrong. */
export function onSubmit(id, act) {
  const status = byId(`${id}-status`);
  let running = null;
  byId(`${id}-form`).addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = running = new AbortController();
    const began = performance.now();
    status.textContent = "Working…";
    status.classList.remove("error");
    try {
      const nodes = await act(mine.signal);
      if (mine !== running) return;
      byId(`${id}-result`).replaceChildren(...nodes);
      status.textContent = `Done in ${Math.round(performance.now() - began).toLocaleString("en")} ms.`;
    } catch (error) {
      if (mine !== running || error.name === "AbortError") return;
      status.textContent = error.message;
      status.classList.add("error");
      if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
    }
  });
}

/** The lines of a field that say something. */
export function lines(id) {
  const found = byId(id).value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!found.length) throw new Error("Write something first: each line is a text.");
  return found;
}
