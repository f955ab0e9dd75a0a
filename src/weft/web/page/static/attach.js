// Pictures and sound of the next message: chosen, dropped, pasted or recorded, where the model takes them.

import { button, byId, bytes, make } from "./dom.js";
import { asBytes, asWav, player, recorder } from "./sound.js";

const MAX_BYTES = 8 * 2 ** 20; // of a picture's file: in base64 it fits the body of a request
const PREVIEW = 96; // pixels of the longer side

let attached = []; // each { name, url }, and { seconds } of sound
let takes = { pictures: false, sound: false };

/** `say` shows a message beside the composer. */
export function setUp(say) {
  const field = byId("pictures");
  byId("attach").addEventListener("click", () => field.click());
  field.addEventListener("change", async () => {
    await add([...field.files], say);
    field.value = "";
  });
  byId("record").append(recorder((file) => add([file], say), say));
  const talk = byId("talk");
  talk.addEventListener("paste", (event) => take(event, event.clipboardData, say));
  talk.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  talk.addEventListener("drop", (event) => take(event, event.dataTransfer, say));
}

/** Shows the buttons for what the model takes. */
export function follow(capabilities) {
  takes = { pictures: capabilities.includes("vision"), sound: capabilities.includes("audio") };
  byId("attach").hidden = !takes.pictures && !takes.sound;
  byId("attach").setAttribute("aria-label", `Add ${wanted()}`);
  byId("attach").title = `Add ${wanted()}`;
  byId("pictures").accept = [takes.pictures && "image/*", takes.sound && "audio/*"].filter(Boolean).join(",");
  byId("record").hidden = !takes.sound;
  set(attached.filter((file) => isSound(file) ? takes.sound : takes.pictures));
}

const wanted = () => takes.pictures && takes.sound ? "pictures and sound" : takes.sound ? "sound" : "pictures";
const isSound = ({ seconds }) => seconds !== undefined;

export const hasFiles = () => attached.length > 0;

/** The files for the message that is sent now; none are attached after it. */
export function takeAll() {
  const taken = attached;
  set([]);
  return { pictures: taken.filter((file) => !isSound(file)), sounds: taken.filter(isSound) };
}

export function set(files) {
  attached = files;
  byId("attached").replaceChildren(...files.map((file) => make("li", {}, preview(file),
    button("Remove", () => set(attached.filter((one) => one !== file)), { "aria-label": `Remove ${file.name}` }))));
}

/** A small drawing of a picture, or the name of a recording. */
export const preview = (file) => isSound(file) ? player(file) : drawn(file);

/** A canvas needs no address, so the page's policy allows none for pictures. */
function drawn({ name, url }) {
  const canvas = make("canvas", { role: "img", "aria-label": name, title: name, width: PREVIEW, height: PREVIEW });
  createImageBitmap(new Blob([asBytes(url)])).then((bitmap) => {
    const scale = Math.min(1, PREVIEW / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  }, () => {}); // of an imported chat: its place stays empty
  return canvas;
}

/** What a message says: text, or its files and text as parts. */
export function content({ text, pictures = [], sounds = [] }) {
  if (!pictures.length && !sounds.length) return text;
  return [...pictures.map(({ url }) => ({ type: "image_url", image_url: { url } })),
    ...sounds.map(audioPart),
    ...(text ? [{ type: "text", text }] : [])];
}

function audioPart({ url }) {
  const data = url.slice(url.indexOf(",") + 1);
  return { type: "input_audio", input_audio: { data, format: "wav" } };
}

async function take(event, transfer, say) {
  if (!transfer.files.length) return;
  event.preventDefault(); // else the browser opens a dropped file
  await add([...transfer.files], say);
}

async function add(files, say) {
  if (!takes.pictures && !takes.sound) {
    say("This model takes no pictures and no sound.");
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
  if (/^(audio|video)\//.test(file.type)) {
    if (!takes.sound) throw new Error(`${file.name}: this model takes no sound.`);
    const { blob, seconds } = await asWav(file);
    return { name: file.name, url: await asUrl(blob), seconds };
  }
  if (!takes.pictures) throw new Error(`${file.name} is not sound, and this model takes no pictures.`);
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${bytes(MAX_BYTES)}.`);
  await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} is not a picture that this browser can read.`);
  });
  return { name: file.name, url: await asUrl(file) };
}

function asUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}
