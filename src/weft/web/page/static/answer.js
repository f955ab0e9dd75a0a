// One answer on the page: its reasoning, its text, its tool calls, its tokens, and whether it keeps to a schema.

import { button, make } from "./dom.js";
import { Markdown } from "./markdown.js";
import { check } from "./schema.js";
import { TokenView } from "./tokens.js";

const ENDS = { length: "ended by the limit of tokens", stopped: "stopped", content_filter: "ended by a filter",
  repetition: "ended for repeating itself" };

/** What an answer is before anything of it has come. */
export const emptyAnswer = () => ({ content: "", reasoning: "", calls: [], tokens: [], finish: null, problem: null });

/** Shows `data`, which it fills as the answer comes. Text of a schema is shown as it is, other text as Markdown. */
export class Answer {
  #text;
  #reasoning = new Markdown();
  #reasoningLabel = make("summary", {}, "Reasoning");
  #reasoningBox = make("details", { className: "reasoning", hidden: true }, this.#reasoningLabel, this.#reasoning.node);
  #calls = make("div");
  #cards = [];
  #notes = make("div");
  #isDrawn = true;

  constructor(label, data, { goOn, isPlain = false }) {
    this.data = data;
    this.view = new TokenView(goOn);
    this.view.content = () => data.content;
    this.#text = isPlain ? new Plain() : new Markdown();
    this.#text.node.classList.add("answer");
    this.toggle = button("Tokens", () => this.#showTokens(), { "aria-expanded": "false", hidden: true });
    this.tools = make("div", { className: "row" }, this.toggle);
    this.node = make("div", { className: "choice", role: "group", "aria-label": label }, this.#reasoningBox,
      this.#text.node, this.#calls, this.#notes, this.tools, this.view.node);
    data.calls.forEach((_, i) => this.#showCall(i));
    if (data.tokens.length) this.#addTokens(data.tokens);
    if (data.finish) this.#showEnd();
    this.draw();
  }

  /** Take in one choice of a chunk. */
  add({ delta, logprobs, finish_reason: finish }) {
    const data = this.data;
    if (delta.content) data.content += delta.content;
    if (delta.reasoning) data.reasoning += delta.reasoning;
    for (const call of delta.tool_calls ?? []) this.#addCall(call);
    if (logprobs?.content?.length) {
      data.tokens.push(...logprobs.content);
      if (this.toggle.hidden) this.#showTokens();
      this.#addTokens(logprobs.content);
    }
    if (finish) this.end(finish);
    this.#drawSoon();
  }

  end(finish) {
    this.data.finish = finish;
    this.#showEnd();
  }

  /** Begin again, with nothing. */
  clear() {
    Object.assign(this.data, emptyAnswer());
    this.#calls.replaceChildren();
    this.#cards = [];
    this.clearNotes();
    this.view.clear();
    this.draw();
  }

  clearNotes() {
    this.#notes.replaceChildren();
  }

  note(text, className, ...more) {
    this.#notes.append(make("p", { className, role: className === "error" ? "alert" : null }, text, ...more));
  }

  /** Once for all that comes before the next frame; a hidden page has none. */
  #drawSoon() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    if (document.hidden) this.draw();
    else requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.#isDrawn = true;
    this.#text.show(this.data.content);
    this.#reasoning.show(this.data.reasoning);
    this.#reasoningBox.hidden = !this.data.reasoning;
    this.#reasoningLabel.textContent = this.data.content || this.data.finish ? "Reasoning" : "Reasoning…";
  }

  #addTokens(tokens) {
    this.toggle.hidden = false;
    this.view.add(tokens);
  }

  #addCall({ index, id, function: said }) {
    const calls = this.data.calls;
    calls[index] ??= { id: "", name: "", arguments: "", result: "" };
    const call = calls[index];
    call.id = id ?? call.id;
    call.name += said.name ?? "";
    call.arguments += said.arguments ?? "";
    this.#showCall(index);
  }

  #showCall(index) {
    const call = this.data.calls[index];
    if (!call) return;
    if (!this.#cards[index]) {
      const result = make("input", { type: "text", value: call.result, oninput: () => { call.result = result.value; } });
      const card = { title: make("strong"), written: make("pre") };
      this.#cards[index] = card;
      this.#calls.append(make("div", { className: "call" }, make("p", { className: "who" }, "Calls ", card.title),
        card.written, make("label", {}, "Result ", result)));
    }
    this.#cards[index].title.textContent = call.name;
    this.#cards[index].written.textContent = pretty(call.arguments);
  }

  #showEnd() {
    if (ENDS[this.data.finish]) this.note(ENDS[this.data.finish], "soft");
  }

  #showTokens() {
    this.view.node.hidden = !this.view.node.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.view.node.hidden));
  }

  /** Say whether the text keeps to the schema that it was to keep to. */
  judge(schema) {
    let value;
    try {
      value = JSON.parse(this.data.content);
    } catch {
      this.note("Not JSON: the answer cannot be checked against the schema.", "error");
      return;
    }
    const { problems, unchecked } = check(value, schema);
    for (const problem of problems.slice(0, 5)) this.note(`Schema: ${problem}.`, "error");
    if (!problems.length) this.note("Keeps to the schema.", "good");
    if (unchecked.length) this.note(`Left to the server, not checked here: ${unchecked.join(", ")}.`, "soft");
  }
}

/** Text as it is. */
class Plain {
  node = make("div", { className: "text" });

  show(text) {
    this.node.textContent = text;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // more of it is to come
  }
}

/** An answer as the APIs take it back. */
export function asMessage({ content, calls }) {
  const message = { role: "assistant", content };
  const made = calls.filter(Boolean);
  if (made.length) {
    message.tool_calls = made.map((call) =>
      ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return message;
}
