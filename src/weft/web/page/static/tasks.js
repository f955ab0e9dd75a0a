// What the first view is for: a chat, or for models that do not chat: embeddings, rankings, classes, texts of recordings.

import { send } from "./api.js";
import * as attach from "./attach.js";
import * as classify from "./classify.js";
import { byId } from "./dom.js";
import * as embed from "./embed.js";
import { model } from "./modelmenu.js";
import * as rank from "./rank.js";
import * as transcribe from "./transcribe.js";

// Each: what the server says that its model can do, the element, and the word for the view.
const TASKS = [
  ["transcription", "transcribe", "Transcribe"], ["embedding", "embed", "Embed"], ["rerank", "rank", "Rank"],
  ["classification", "classify", "Classify"],
];

export function setUp() {
  embed.setUp();
  rank.setUp();
  classify.setUp();
  transcribe.setUp();
  addEventListener("model-changed", follow);
}

/** Shows what fits the model that is used. */
async function follow() {
  const name = model();
  let capabilities = ["completion"];
  try {
    const shown = await send("api/show", { body: { model: name } });
    ({ capabilities } = await shown.json());
  } catch {} // a server that does not say
  if (name !== model()) return;
  const task = TASKS.find(([capability]) => capabilities.includes(capability));
  const isChat = capabilities.includes("completion") || !task;
  byId("talk-view").hidden = !isChat;
  for (const [, id] of TASKS) byId(id).hidden = isChat || task[1] !== id;
  byId("to-chat").textContent = isChat ? "Chat" : task[2];
  attach.follow(capabilities);
}
