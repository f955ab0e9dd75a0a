// The conversation: what was said, the request that goes out next, and the answers as they come.

import { asMessage, emptyAnswer } from "./answer.js";
import { events, send } from "./api.js";
import * as attach from "./attach.js";
import { Conversation } from "./conversation.js";
import { byId, number } from "./dom.js";
import * as settings from "./settings.js";
import { viewOf } from "./turnview.js";

const SAVE_MS = 2000; // an answer that grows is saved so often
const SLICE_MS = 20; // of drawing a long chat, after which the page takes keys and clicks

let conversation = new Conversation();
let views = [];
let editing = null;
let running = null; // { view, conversation, stop }: the answer that is coming

export function setUp() {
  attach.setUp(say);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open], :popover-open")) return;
    if (running) stop();
    else if (editing !== null) cancelEdit();
  });
  byId("stop").addEventListener("click", stop);
  byId("cancel-edit").addEventListener("click", cancelEdit);
  addEventListener("settings-changed", () => conversation.setSettings(settings.values()));
  addEventListener("not-kept", ({ detail }) => say(detail));
}

const say = (text) => { byId("status").textContent = text; };
const stop = () => running?.stop.abort();

/** True if a message is being written. */
export const isDrafting = () => byId("message").value !== "" || attach.hasFiles();

/** Show another chat. An answer that is coming in this one goes on. A draft of the same chat stays. */
export function open(other) {
  if (other !== conversation) {
    conversation = other;
    cancelEdit();
    say("");
  }
  if (other.about.settings) settings.show(other.about.settings);
  else other.about.settings = settings.values();
  show();
  byId("message").focus();
}

export const current = () => conversation;

/** The chat of the answer that is coming, which is further than the chat that was saved; undefined if it is another one. */
export const answering = (id) => running?.conversation.about.id === id ? running.conversation : undefined;

/** Forget a chat that was deleted, with the answer that is coming in it. */
export function forget(id) {
  for (const one of [conversation, running?.conversation]) if (one?.about.id === id) one.isGone = true;
  if (running?.conversation.about.id === id) stop();
}

/** The turns of the path, those at the end first; a long chat is drawn in slices, so that the page stays quick. */
function show() {
  const path = conversation.path();
  byId("hint").hidden = path.length > 0;
  const shown = views = [];
  let place = path.length;
  byId("turns").replaceChildren();
  byId("turns").setAttribute("aria-busy", "true");
  const slice = () => {
    if (shown !== views) return; // another chat or branch is shown
    const until = performance.now() + SLICE_MS;
    while (place > 0 && performance.now() < until) {
      place -= 1;
      const view = running?.view.turn === path[place] ? running.view : viewOf(path[place], conversation, act);
      views.unshift(view);
      byId("turns").prepend(view.node);
    }
    if (place > 0) setTimeout(slice);
    else byId("turns").removeAttribute("aria-busy");
  };
  slice();
  scrollToEnd();
}

const scrollToEnd = () => { byId("scroll").scrollTop = byId("scroll").scrollHeight; };
const isAtEnd = () => byId("scroll").scrollHeight - byId("scroll").scrollTop - byId("scroll").clientHeight < 60;

/** Add turns to the end of what is shown. */
function append(turn) {
  const view = viewOf(turn, conversation, act);
  views.push(view);
  byId("turns").append(view.node);
  byId("hint").hidden = true;
  scrollToEnd();
  return view;
}

/** Show no turn from this one on. */
function cutFrom(turn) {
  const place = views.findIndex((view) => view.turn === turn);
  for (const view of views.splice(place)) view.node.remove();
}

/** The fields of a request, if one may go out now. */
function nextRequest() {
  if (!running) return settings.request();
  if (running.conversation !== conversation) say("An answer is coming in another chat: wait, or stop it.");
  return null;
}

function submit() {
  const text = byId("message").value;
  if (!text.trim() && !attach.hasFiles()) return;
  const request = nextRequest();
  if (!request) return;
  const parent = editing === null ? conversation.about.leaf : editing.parent;
  if (editing !== null) cutFrom(editing);
  const files = attach.takeAll();
  cancelEdit();
  const turn = conversation.add({ role: "user", text, ...files }, parent);
  append(turn);
  answer(request, turn.id);
}

function edit(turn) {
  if (running) return;
  editing = turn;
  byId("message").value = turn.text;
  attach.set([...turn.pictures, ...turn.sounds]);
  byId("message").focus();
  byId("cancel-edit").hidden = false;
  say("Sending makes another branch from that message on.");
}

function cancelEdit() {
  if (editing !== null) say("");
  editing = null;
  byId("message").value = "";
  attach.set([]);
  byId("cancel-edit").hidden = true;
}

/** The messages up to a turn. */
function messagesTo(id) {
  const system = byId("system").value;
  const path = [];
  for (let turn = conversation.turns.get(id); turn; turn = conversation.turns.get(turn.parent)) path.unshift(turn);
  const said = path.flatMap((turn) => {
    if (turn.role === "user") return [{ role: "user", content: attach.content(turn) }];
    if (turn.role === "tool") return [{ role: "tool", tool_call_id: turn.call, content: turn.text }];
    const message = asMessage(turn.answers[turn.chosen]);
    return message.content || message.tool_calls ? [message] : [];
  });
  return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}

/** Have the conversation up to `parent` answered; with `begun`, by an answer that begins so. */
function answer(request, parent, { begun = "", tokens = [] } = {}) {
  const answers = Array.from({ length: begun ? 1 : request.n ?? 1 }, () => ({ ...emptyAnswer(), content: begun, tokens: [...tokens] }));
  const turn = conversation.add({ role: "assistant", model: request.model, request, answers, chosen: 0, isWhole: false, isDone: false }, parent);
  return follow(append(turn));
}

/** The body of the request behind an answer; one that has begun is continued. */
function bodyOf(turn, begun = "", reasoning = "") {
  const body = { ...turn.request, messages: messagesTo(turn.parent) };
  if (begun) {
    body.messages.push({ role: "assistant", content: begun, ...(reasoning ? { reasoning } : {}) });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    // A grammar would begin anew in the middle of the answer.
    for (const name of ["n", "response_format"]) delete body[name];
  }
  return body;
}

/** Take in an answer until it is over. */
async function follow(view) {
  const { turn } = view;
  const { content, reasoning } = turn.answers[0];
  const times = { sent: performance.now(), first: null, saved: performance.now() };
  running = { view, conversation, stop: new AbortController() };
  showRunning(true);
  try {
    const usage = await read(view, bodyOf(turn, content, reasoning), times);
    turn.isWhole = true;
    say(summary(usage, times));
  } catch (error) {
    fail(view, error);
  } finally {
    finish(view);
  }
}

async function read({ answers }, body, times) {
  let usage = null;
  const response = await send("v1/chat/completions", { body, signal: running.stop.signal });
  for await (const chunk of events(response)) {
    const isFollowed = isAtEnd();
    for (const choice of chunk.choices) {
      if (times.first === null && (choice.delta.content || choice.delta.reasoning || choice.delta.tool_calls)) {
        times.first = performance.now();
      }
      answers[choice.index].add(choice);
    }
    usage = chunk.usage ?? usage;
    if (performance.now() - times.saved > SAVE_MS) {
      times.saved = performance.now();
      running.conversation.keep(running.view.turn);
    }
    if (isFollowed) requestAnimationFrame(scrollToEnd);
  }
  return usage;
}

function fail({ turn, answers }, error) {
  say("");
  if (error.name === "AbortError") {
    turn.isWhole = true;
    answers.forEach((one) => one.data.finish || one.end("stopped"));
    say("Stopped.");
    return;
  }
  const what = error.message.replace(/^./, (first) => first.toUpperCase()).replace(/[.]?$/, ".");
  answers[0].data.problem = error.status === 0 && answers[0].data.content ? `${what} The answer so far is kept.` : what;
  if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
}

function finish(view) {
  const { conversation: its } = running;
  running = null;
  view.turn.isDone = true;
  for (const one of view.answers) one.draw();
  view.end();
  its.keep(view.turn);
  showRunning(false, view);
  if (its === conversation && isAtEnd()) scrollToEnd();
}

/** Go on where an answer was cut off; one of which no text has come begins again. */
function resume(turn) {
  if (!nextRequest()) return;
  const view = views.find((one) => one.turn === turn);
  const [first] = view.answers;
  const canContinue = view.answers.length === 1 && first.data.content && !first.data.calls.length;
  Object.assign(turn, { isWhole: false, isDone: false });
  const fresh = viewOf(turn, conversation, act); // without what could be done with the cut answer
  for (const one of fresh.answers) {
    if (!canContinue) one.clear();
    Object.assign(one.data, { problem: null, finish: null });
    one.clearNotes();
  }
  view.node.replaceWith(fresh.node);
  views.splice(views.indexOf(view), 1, fresh);
  follow(fresh);
}

function sendResults(turn, chosen) {
  const request = nextRequest();
  if (!request) return;
  turn.chosen = chosen;
  conversation.keep(turn);
  const place = views.findIndex((view) => view.turn === turn);
  if (views[place + 1]) cutFrom(views[place + 1].turn);
  let parent = turn.id;
  for (const { id, name, result } of turn.answers[chosen].calls.filter(Boolean)) {
    const told = conversation.add({ role: "tool", call: id, name, text: result }, parent);
    append(told);
    parent = told.id;
  }
  answer(request, parent);
}

function retry(turn) {
  const request = nextRequest();
  if (!request) return;
  cutFrom(turn);
  answer(request, turn.parent);
}

function goOn(turn, begun, tokens) {
  const request = nextRequest();
  if (!request) return;
  Object.assign(request, { logprobs: true, top_logprobs: 5 });
  cutFrom(turn);
  answer(request, turn.parent, { begun, tokens });
}

/** Read another branch, or go on with one of two answers. */
function choose(turn, chosen = null) {
  if (chosen !== null) {
    turn.chosen = chosen;
    conversation.keep(turn);
  } else if (!running) {
    conversation.choose(turn);
    show();
  }
}

const act = { edit, retry, goOn, sendResults, resume, choose, say, body: (turn) => bodyOf(turn) };

function showRunning(isRunning, view = running.view) {
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  view.node.setAttribute("aria-busy", String(isRunning));
  if (isRunning) say("Answering…");
}

function summary(usage, { sent, first }) {
  if (!usage) return "Done.";
  const now = performance.now();
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const parts = [`${number(usage.completion_tokens)} tokens`];
  if (first !== null) {
    parts.push(`first after ${number(first - sent)} ms`);
    if (usage.completion_tokens > 1) {
      parts.push(`${number(1000 * (usage.completion_tokens - 1) / Math.max(now - first, 1))} tokens/s`);
    }
  }
  parts.push(`${number(usage.prompt_tokens)} in the prompt${cached ? `, ${number(cached)} of them cached` : ""}`);
  return `Done: ${parts.join(", ")}.`;
}
