// The text of a recording, with the times at which each part is said.

import { send } from "./api.js";
import { copy } from "./copy.js";
import { button, byId, make, number } from "./dom.js";
import { model } from "./modelmenu.js";
import { asWav, recorder } from "./sound.js";
import { onSubmit } from "./work.js";

let file = null;

export function setUp() {
  const view = byId("transcribe");
  const field = byId("transcribe-file");
  byId("choose-recording").addEventListener("click", () => field.click());
  field.addEventListener("change", () => {
    use(field.files[0]);
    field.value = "";
  });
  byId("record-speech").append(recorder(use, (text) => { byId("transcribe-status").textContent = text; }));
  view.addEventListener("dragover", (event) => event.preventDefault());
  view.addEventListener("drop", (event) => {
    event.preventDefault();
    use(event.dataTransfer.files[0]);
  });
  onSubmit("transcribe", transcribe);
}

function use(chosen) {
  if (!chosen) return;
  file = chosen;
  byId("recording-name").textContent = chosen.name;
  byId("transcribe-form").requestSubmit();
}

async function transcribe(signal) {
  if (!file) throw new Error("Choose a recording first, or drop one here.");
  const name = file.name;
  const { blob } = await asWav(file);
  const form = new FormData();
  form.set("file", blob, "recording.wav");
  form.set("model", model());
  const language = byId("transcribe-language").value.trim();
  if (language) form.set("language", language);
  const call = byId("transcribe-english").checked ? "translations" : "transcriptions";
  const answer = await sent(call, form, signal);
  return [make("h3", {}, name),
    make("p", { className: "soft" }, [answer.language && `Language: ${answer.language}.`, answer.duration && `${number(answer.duration, 1)} s of sound.`].filter(Boolean).join(" ")),
    make("p", { className: "text transcript" }, answer.text.trim() || "Nothing is said."),
    make("div", { className: "row" }, copyButton("Copy the text", answer.text.trim()),
      answer.segments?.length ? copyButton("Copy as SRT", srt(answer.segments)) : null),
    answer.segments?.length ? times(answer.segments) : ""];
}

/** With times, or from a model that knows none, without. */
async function sent(call, form, signal) {
  form.set("response_format", "verbose_json");
  try {
    return await (await send(`v1/audio/${call}`, { form, signal })).json();
  } catch (error) {
    if (!/timestamps/.test(error.message)) throw error;
    form.set("response_format", "json");
    return (await send(`v1/audio/${call}`, { form, signal })).json();
  }
}

function copyButton(label, text) {
  const one = button(label, async () => {
    one.textContent = (await copy(text)) ? "Copied" : label;
  });
  return one;
}

function times(segments) {
  const rows = segments.map(({ start, end, text }) => make("tr", {},
    make("td", { className: "times" }, `${clock(start)} – ${clock(end)}`), make("td", {}, text.trim())));
  const head = ["Time", "Text"].map((text) => make("th", { scope: "col" }, text));
  return make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Times" },
    make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
}

const two = (value) => String(Math.floor(value)).padStart(2, "0");
const clock = (seconds) => `${two(seconds / 60)}:${two(seconds % 60)}.${Math.floor((seconds * 10) % 10)}`;
const srtClock = (seconds) =>
  `${two(seconds / 3600)}:${two((seconds / 60) % 60)}:${two(seconds % 60)},${String(Math.floor((seconds * 1000) % 1000)).padStart(3, "0")}`;
const srt = (segments) => segments.map(({ start, end, text }, i) =>
  `${i + 1}\n${srtClock(start)} --> ${srtClock(end)}\n${text.trim()}\n`).join("\n");
