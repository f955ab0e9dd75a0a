// Pictures of the next message: chosen, dropped or pasted, where the model takes them.

import { send } from "./api.js";
import { button, byId, bytes, make } from "./dom.js";

const MAX_BYTES = 8 * 2 ** 20; // of a file: in base64 it fits the body of a request
const PREVIEW = 96; // pixels of the longer side

let attached = []; // each { name, url, bitmap }
let takes = false;

/** `say` shows a message beside the composer. */
export function setUp(say) {
  const field = byId("pictures");
  byId("attach").addEventListener("click", () => field.click());
  field.addEventListener("change", async () => {
    await add([...field.files], say);
    field.value = "";
  });
  const composer = byId("composer");
  composer.addEventListener("paste", (event) => take(event, event.clipboardData, say));
  composer.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  composer.addEventListener("drop", (event) => take(event, event.dataTransfer, say));
}

/** Shows or hides the button: asks the server whether this model takes pictures. */
export async function follow(model) {
  try {
    const shown = await (await send("api/show", { body: { model } })).json();
    takes = shown.capabilities.includes("vision");
  } catch {
    takes = false; // a server that does not say
  }
  byId("attach").hidden = !takes;
  if (!takes) set([]);
}

/** The pictures for the message that is sent now; none are attached after it. */
export function takeAll() {
  const taken = attached;
  set([]);
  return taken;
}

export function set(pictures) {
  attached = pictures;
  byId("attached").replaceChildren(...pictures.map((picture) => make("li", {}, preview(picture),
    button("Remove", () => set(attached.filter((one) => one !== picture)), { "aria-label": `Remove ${picture.name}` }))));
}

/** A small drawing of a picture. A canvas needs no address, so the page's policy allows none for pictures. */
export function preview({ name, bitmap }) {
  const scale = Math.min(1, PREVIEW / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { role: "img", "aria-label": name, title: name });
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** What a message says: text, or pictures and text as parts. */
export function content(text, pictures) {
  if (!pictures.length) return text;
  return [...pictures.map(({ url }) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

async function take(event, transfer, say) {
  if (!transfer.files.length) return;
  event.preventDefault(); // else the browser opens a dropped file
  await add([...transfer.files], say);
}

async function add(files, say) {
  if (!takes) {
    say("This model takes no pictures.");
    return;
  }
  for (const file of files) {
    try {
      set([...attached, await read(file)]);
    } catch (error) {
      say(error.message);
    }
  }
}

async function read(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${bytes(MAX_BYTES)}.`);
  const [bitmap, url] = await Promise.all([asBitmap(file), asUrl(file)]);
  return { name: file.name, url, bitmap };
}

async function asBitmap(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not a picture that this browser can read.`);
  }
}

function asUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}
