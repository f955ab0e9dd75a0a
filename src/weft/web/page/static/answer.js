// One answer on the page: its reasoning, its text, its tool calls, its tokens, and whether it keeps to a schema.

import { button, make } from "./dom.js";
import { check } from "./schema.js";
import { TokenView } from "./tokens.js";

const ENDS = { length: "ended by the limit of tokens", stopped: "stopped", content_filter: "ended by a filter",
  repetition: "ended for repeating itself" };

export class Answer {
  content = "";
  reasoning = "";
  calls = [];
  #text = document.createTextNode("");
  #reasoning = document.createTextNode("");
  #reasoningBox = make("details", { className: "reasoning", hidden: true }, make("summary", {}, "Reasoning"),
    make("div", { className: "text" }, this.#reasoning));
  #calls = make("div");
  #notes = make("div");

  constructor(label, { begun = "", tokens = [], goOn }) {
    this.view = new TokenView(goOn);
    this.view.content = () => this.content;
    this.toggle = button("Tokens", () => this.#showTokens(), { "aria-expanded": "false", hidden: true });
    this.tools = make("div", { className: "row" }, this.toggle);
    this.node = make("div", { className: "choice", role: "group", "aria-label": label }, this.#reasoningBox,
      make("div", { className: "text answer" }, this.#text), this.#calls, this.#notes, this.tools, this.view.node);
    this.add({ delta: { content: begun }, logprobs: { content: tokens } });
  }

  /** Take in one choice of a chunk. */
  add({ delta, logprobs, finish_reason: finish }) {
    if (delta.content) {
      this.content += delta.content;
      this.#text.appendData(delta.content);
    }
    if (delta.reasoning) {
      this.reasoning += delta.reasoning;
      this.#reasoning.appendData(delta.reasoning);
      this.#reasoningBox.hidden = false;
    }
    for (const call of delta.tool_calls ?? []) this.#addCall(call);
    if (logprobs?.content?.length) {
      this.view.add(logprobs.content);
      if (this.toggle.hidden) this.#showTokens();
      this.toggle.hidden = false;
    }
    if (finish) this.end(finish);
  }

  end(finish) {
    if (ENDS[finish]) this.note(ENDS[finish], "soft");
  }

  note(text, className) {
    this.#notes.append(make("p", { className, role: className === "error" ? "alert" : null }, text));
  }

  #addCall({ index, id, function: said }) {
    let call = this.calls[index];
    if (!call) {
      call = this.calls[index] = { id: "", name: "", arguments: "", result: make("input", { type: "text" }) };
      call.title = make("strong");
      call.written = make("pre");
      this.#calls.append(make("div", { className: "call" }, make("p", { className: "who" }, "Calls ", call.title),
        call.written, make("label", {}, "Result ", call.result)));
    }
    call.id = id ?? call.id;
    call.name += said.name ?? "";
    call.arguments += said.arguments ?? "";
    call.title.textContent = call.name;
    call.written.textContent = call.arguments;
  }

  #showTokens() {
    this.view.node.hidden = !this.view.node.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.view.node.hidden));
  }

  /** Say whether the text keeps to the schema that it was to keep to. */
  judge(schema) {
    let value;
    try {
      value = JSON.parse(this.content);
    } catch {
      this.note("Not JSON: the answer cannot be checked against the schema.", "error");
      return;
    }
    const { problems, unchecked } = check(value, schema);
    for (const problem of problems.slice(0, 5)) this.note(`Schema: ${problem}.`, "error");
    if (!problems.length) this.note("Keeps to the schema.", "good");
    if (unchecked.length) this.note(`Left to the server, not checked here: ${unchecked.join(", ")}.`, "soft");
  }

  /** As the APIs take it back. */
  message() {
    const message = { role: "assistant", content: this.content };
    const calls = this.calls.filter(Boolean);
    if (calls.length) {
      message.tool_calls = calls.map((call) =>
        ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    return message;
  }
}
