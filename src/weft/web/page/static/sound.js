// Sound as 16-bit WAV with one channel at 16 kHz, which every model of sound here takes: from files, and from the microphone.

import { button, bytes, make, number } from "./dom.js";

const RATE = 16_000;
const MAX_BYTES = 200 * 2 ** 20;
const MAX_RECORDED_S = 600;

export const canRecord = () => Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

/** { blob, seconds } of a file that this browser can decode. */
export async function asWav(file) {
  const name = file.name ?? "The recording";
  if (file.size > MAX_BYTES) throw new Error(`${name} is larger than ${bytes(MAX_BYTES)}.`);
  const context = new OfflineAudioContext(1, 1, RATE); // decodes to its own rate
  let sound;
  try {
    sound = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} is not a recording that this browser can read.`);
  }
  return { blob: wav(mixed(sound)), seconds: sound.duration };
}

/** The mean of all channels. */
function mixed(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  return channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
}

function wav(samples) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, text) => [...text].forEach((char, i) => data.setUint8(at + i, char.charCodeAt(0)));
  write(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true); // PCM
  data.setUint16(22, 1, true);
  data.setUint32(24, RATE, true);
  data.setUint32(28, 2 * RATE, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  write(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => data.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return new Blob([data], { type: "audio/wav" });
}

/** A button that records until it is pressed again; then `take` gets the recording. */
export function recorder(take, say) {
  let recording = null;
  let timer = null;
  const label = (text) => one.replaceChildren(text);
  const stop = () => recording?.state === "recording" && recording.stop();
  const begin = async () => {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const parts = [];
    recording = new MediaRecorder(stream);
    recording.ondataavailable = ({ data }) => parts.push(data);
    recording.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      clearInterval(timer);
      recording = null;
      label("Record");
      take(new File(parts, "Recording", { type: parts[0]?.type ?? "" }));
    };
    recording.start();
    const began = performance.now();
    timer = setInterval(() => {
      const seconds = (performance.now() - began) / 1000;
      label(`Stop recording (${number(seconds)} s)`);
      if (seconds > MAX_RECORDED_S) stop();
    }, 500);
    label("Stop recording");
  };
  const one = button("Record", async () => {
    if (recording) return stop();
    try {
      await begin();
    } catch {
      say("The microphone cannot be used: this browser does not allow it, or there is none.");
    }
  }, { hidden: !canRecord() });
  return one;
}

/** A recording in a message: its name and length, and a button that plays it. */
export function player({ name, url, seconds }) {
  let source = null;
  const play = button("Play", async () => {
    if (source) return source.stop();
    const context = new AudioContext();
    source = context.createBufferSource();
    source.buffer = await context.decodeAudioData(asBytes(url).buffer);
    source.connect(context.destination);
    source.onended = () => {
      source = null;
      play.textContent = "Play";
      context.close();
    };
    source.start();
    play.textContent = "Stop";
  }, { "aria-label": `Play ${name}` });
  return make("span", { className: "sound" }, `${name}, ${number(seconds, 1)} s`, play);
}

/** The bytes of a data URL; the page's policy lets none be loaded. */
export const asBytes = (url) => Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (char) => char.charCodeAt(0));
