// The conversation: what was said, the request that goes out next, and the answers as they come.

import { Answer } from "./answer.js";
import { events, key, send } from "./api.js";
import { asCurl, asPython, copy } from "./copy.js";
import { button, byId, make, number } from "./dom.js";
import * as pictures from "./pictures.js";
import * as settings from "./settings.js";

// Each { role, node } with `content` and `pictures` (user), `content` and `id` (tool) or `answers` and `chosen` (assistant).
let turns = [];
let editing = null;
let running = null; // what stops the answer that is coming

export function setUp() {
  pictures.setUp(say);
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
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (running) stop();
    else if (editing !== null) cancelEdit();
  });
  byId("stop").addEventListener("click", stop);
  byId("cancel-edit").addEventListener("click", cancelEdit);
  byId("clear").addEventListener("click", () => {
    stop();
    cutTo(0);
    cancelEdit();
    say("");
  });
}

const say = (text) => { byId("status").textContent = text; };
const stop = () => running?.abort();

function cutTo(place) {
  for (const turn of turns.slice(place)) turn.node.remove();
  turns = turns.slice(0, place);
  byId("hint").hidden = turns.length > 0;
}

function push(turn) {
  turns.push(turn);
  byId("turns").append(turn.node);
  byId("hint").hidden = true;
}

function submit() {
  const text = byId("message").value;
  if (running || !text.trim()) return;
  const body = settings.request();
  if (!body) return;
  if (editing !== null) cutTo(turns.indexOf(editing));
  const shown = pictures.takeAll();
  cancelEdit();
  addUser(text, shown);
  answer(body);
}

function addUser(content, shown) {
  const turn = { role: "user", content, pictures: shown };
  turn.node = make("li", { className: "user" }, make("p", { className: "who" }, "You"),
    shown.length ? make("div", { className: "row" }, shown.map(pictures.preview)) : null,
    make("div", { className: "text" }, content),
    make("div", { className: "row" }, button("Edit", () => edit(turn))));
  push(turn);
}

function edit(turn) {
  if (running) return;
  editing = turn;
  byId("message").value = turn.content;
  pictures.set(turn.pictures);
  byId("message").focus();
  byId("cancel-edit").hidden = false;
  say("Sending takes the place of that message and of all after it.");
}

function cancelEdit() {
  if (editing !== null) say("");
  editing = null;
  byId("message").value = "";
  pictures.set([]);
  byId("cancel-edit").hidden = true;
}

function messages() {
  const system = byId("system").value;
  const said = turns.flatMap((turn) => {
    if (turn.role === "user") return [{ role: "user", content: pictures.content(turn.content, turn.pictures) }];
    if (turn.role === "tool") return [{ role: "tool", tool_call_id: turn.id, content: turn.content }];
    const message = turn.answers[turn.chosen].message();
    return message.content || message.tool_calls ? [message] : [];
  });
  return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}

/** Have the conversation answered; with `begun`, by an answer that begins so. */
async function answer(body, { begun = "", tokens = [] } = {}) {
  body.messages = messages();
  const schema = body.response_format?.json_schema.schema;
  if (begun) {
    body.messages.push({ role: "assistant", content: begun });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    // A grammar would begin anew in the middle of the answer.
    for (const name of ["n", "response_format"]) delete body[name];
  }
  const turn = addAnswers(body, begun, tokens);
  const times = { sent: performance.now(), first: null };
  running = new AbortController();
  show(true, turn);
  try {
    await follow(turn, body, times);
    if (schema) turn.answers.forEach((one) => one.calls.length || one.judge(schema));
    say(summary(turn, times));
  } catch (error) {
    fail(turn, error);
  } finally {
    running = null;
    show(false, turn);
    finish(turn);
  }
}

async function follow(turn, body, times) {
  const response = await send("v1/chat/completions", { body, signal: running.signal });
  for await (const chunk of events(response)) {
    const isFollowed = turn.node.getBoundingClientRect().bottom <= innerHeight;
    for (const choice of chunk.choices) {
      if (times.first === null && (choice.delta.content || choice.delta.reasoning || choice.delta.tool_calls)) {
        times.first = performance.now();
      }
      turn.answers[choice.index].add(choice);
    }
    turn.usage = chunk.usage ?? turn.usage;
    if (isFollowed) turn.node.scrollIntoView({ block: "nearest" });
  }
}

function fail(turn, error) {
  if (error.name === "AbortError") {
    turn.answers.forEach((one) => one.end("stopped"));
    say("Stopped.");
    return;
  }
  turn.answers[0].note(error.message, "error");
  say("");
  if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
}

function addAnswers(body, begun, tokens) {
  const turn = { role: "assistant", chosen: 0, body };
  const goOn = (text, some) => goOnFrom(turn, text, some);
  turn.answers = Array.from({ length: body.n ?? 1 }, (_, i) =>
    new Answer(`Answer ${i + 1}`, { begun, tokens, goOn }));
  const copied = (write) => async () => say((await copy(write(body, key() !== ""))) ? "Copied." : "");
  turn.node = make("li", { className: "assistant" }, make("p", { className: "who" }, body.model),
    make("div", { className: "choices" }, turn.answers.map((one) => one.node)),
    make("div", { className: "row" }, button("Retry", () => retry(turn)),
      button("Copy as curl", copied(asCurl)), button("Copy as Python", copied(asPython))));
  push(turn);
  turn.node.scrollIntoView({ block: "nearest" });
  return turn;
}

/** What can be done once an answer is over: choose one of two, answer its calls. */
function finish(turn) {
  if (turn.answers.length > 1) {
    const name = `chosen-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    turn.answers.forEach((one, i) => one.tools.append(make("label", { className: "check" },
      make("input", { type: "radio", name, checked: i === 0, onchange: () => { turn.chosen = i; } }),
      "Go on with this one")));
  }
  for (const one of turn.answers.filter((each) => each.calls.length)) {
    one.tools.append(button("Send results", () => sendResults(turn, one)));
  }
}

function sendResults(turn, one) {
  const body = running ? null : settings.request();
  if (!body) return;
  turn.chosen = turn.answers.indexOf(one);
  cutTo(turns.indexOf(turn) + 1);
  for (const { id, name, result } of one.calls.filter(Boolean)) {
    const node = make("li", { className: "user" }, make("p", { className: "who" }, `Result of ${name}`),
      make("div", { className: "text" }, result.value));
    push({ role: "tool", id, content: result.value, node });
  }
  answer(body);
}

function retry(turn) {
  const body = running ? null : settings.request();
  if (!body) return;
  cutTo(turns.indexOf(turn));
  answer(body);
}

function goOnFrom(turn, begun, tokens) {
  const body = running ? null : settings.request();
  if (!body) return;
  Object.assign(body, { logprobs: true, top_logprobs: 5 });
  cutTo(turns.indexOf(turn));
  answer(body, { begun, tokens });
}

function show(isRunning, turn) {
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  turn.node.setAttribute("aria-busy", String(isRunning));
  if (isRunning) say("Answering…");
}

function summary({ usage }, { sent, first }) {
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
