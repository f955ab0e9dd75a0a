// Chats as a JSON file, out of this browser and into it.

import { renewed } from "./conversation.js";

const FORMAT = "weft-chats";
const VERSION = 1;
const MAX_TURNS = 100_000;

export const exported = (chats) => JSON.stringify({ format: FORMAT, version: VERSION, chats }, null, 1);

/** Pairs of a chat and its turns from a file's text, with ids of their own; an error says what is wrong with it. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new Error(`The file holds no chats: its "format" must be "${FORMAT}".`);
  if (file.version !== VERSION) throw new Error(`The file's "version" must be ${VERSION}.`);
  return file.chats.map(({ about, turns }, i) => {
    if (!Array.isArray(turns) || turns.length > MAX_TURNS) throw new Error(`Chat ${i + 1} of the file has no list of turns.`);
    const clean = turns.map((turn, j) => cleanTurn(turn, `Turn ${j + 1} of chat ${i + 1}`));
    const ids = new Set();
    for (const { id, parent } of clean) { // a parent stands before its children: there is no circle
      if (ids.has(id) || (parent !== null && !ids.has(parent))) throw new Error(`Chat ${i + 1} of the file is damaged.`);
      ids.add(id);
    }
    return renewed(cleanAbout(about), clean);
  });
}

const asText = (value) => typeof value === "string" ? value : "";
const asList = (value, clean) => Array.isArray(value) ? value.filter((one) => one && typeof one === "object").map(clean) : [];
const asPlain = (value) => value && typeof value === "object" && !Array.isArray(value) ? value : null;
const asTime = (value) => Number.isFinite(value) ? value : Date.now();

function cleanAbout(about) {
  return { title: asText(about?.title), isNamed: about?.isNamed === true, made: asTime(about?.made), changed: asTime(about?.changed),
    leaf: asText(about?.leaf), settings: asPlain(about?.settings) };
}

const cleanFile = ({ name, url }) => ({ name: asText(name), url: asText(url) });
const cleanSound = (sound) => ({ ...cleanFile(sound), seconds: Number.isFinite(sound.seconds) ? sound.seconds : 0 });
const cleanCall = ({ id, name, arguments: said, result }) =>
  ({ id: asText(id), name: asText(name), arguments: asText(said), result: asText(result) });
const cleanToken = ({ token, logprob, bytes, top_logprobs: top }) =>
  ({ token: asText(token), logprob: Number.isFinite(logprob) ? logprob : 0, bytes: Array.isArray(bytes) ? bytes : null, top_logprobs: asList(top, cleanToken) });
const cleanAnswer = ({ content, reasoning, calls, tokens, finish, problem }) =>
  ({ content: asText(content), reasoning: asText(reasoning), calls: asList(calls, cleanCall), tokens: asList(tokens, cleanToken),
    finish: asText(finish) || null, problem: asText(problem) || null });

function cleanTurn(turn, place) {
  const base = { id: asText(turn?.id), parent: turn?.parent ? asText(turn.parent) : null, made: asTime(turn?.made), role: turn?.role };
  if (!base.id) throw new Error(`${place} has no "id".`);
  switch (turn.role) {
    case "user": return { ...base, text: asText(turn.text), pictures: asList(turn.pictures, cleanFile), sounds: asList(turn.sounds, cleanSound) };
    case "tool": return { ...base, text: asText(turn.text), call: asText(turn.call), name: asText(turn.name) };
    case "assistant": {
      const answers = asList(turn.answers, cleanAnswer);
      if (!answers.length) throw new Error(`${place} has no answer.`);
      const chosen = Number.isInteger(turn.chosen) && turn.chosen >= 0 && turn.chosen < answers.length ? turn.chosen : 0;
      return { ...base, model: asText(turn.model), request: asPlain(turn.request) ?? {}, answers, chosen, isWhole: turn.isWhole !== false };
    }
    default: throw new Error(`${place} must have the "role" user, assistant or tool.`);
  }
}
