// Turns as elements: what was said, what can be done with it, and the way to its other branches.

import { Answer } from "./answer.js";
import { key } from "./api.js";
import { preview } from "./attach.js";
import { asCurl, asPython, copy } from "./copy.js";
import { button, make } from "./dom.js";

/** `act` has what the buttons do: edit, retry, goOn, sendResults, resume, choose(turn), body(turn), say. */
export function viewOf(turn, conversation, act) {
  const view = turn.role === "assistant" ? assistant(turn, act) : said(turn, act);
  const branches = conversation.branches(turn);
  if (branches.length > 1) view.row.prepend(branchRow(turn, branches, act));
  return view;
}

function branchRow(turn, branches, act) {
  const place = branches.indexOf(turn);
  const to = (label, text, other) => button(text, () => act.choose(branches[other]), { "aria-label": label, disabled: !branches[other] });
  return make("span", { className: "branches" }, to("The branch before", "‹", place - 1),
    make("span", {}, `${place + 1} of ${branches.length}`), to("The branch after", "›", place + 1));
}

function said(turn, act) {
  const isUser = turn.role === "user";
  const files = [...(turn.pictures ?? []), ...(turn.sounds ?? [])];
  const row = make("div", { className: "row" }, isUser ? button("Edit", () => act.edit(turn)) : null);
  const node = make("li", { className: "user" }, make("p", { className: "who" }, isUser ? "You" : `Result of ${turn.name}`),
    files.length ? make("div", { className: "row" }, files.map(preview)) : null,
    make("div", { className: "text" }, turn.text), row);
  return { turn, node, row };
}

function assistant(turn, act) {
  const { request } = turn;
  const isPlain = Boolean(request.response_format);
  const answers = turn.answers.map((data, i) =>
    new Answer(`Answer ${i + 1}`, data, { isPlain, goOn: (text, tokens) => act.goOn(turn, text, tokens) }));
  const copied = async (text) => act.say((await copy(text)) ? "Copied." : "");
  const copyBody = (write) => () => copied(write(act.body(turn), key() !== ""));
  const row = make("div", { className: "row" }, button("Retry", () => act.retry(turn)),
    button("Copy", () => copied(turn.answers[turn.chosen].content)),
    button("Copy as curl", copyBody(asCurl)), button("Copy as Python", copyBody(asPython)));
  const node = make("li", { className: "assistant" }, make("p", { className: "who" }, turn.model),
    make("div", { className: "choices" }, answers.map((one) => one.node)), row);
  const view = { turn, node, row, answers };
  view.end = () => end(view, act);
  if (turn.isDone) view.end();
  return view;
}

/** What can be done once an answer is over: choose one of two, answer its calls, go on with what was cut off. */
function end({ turn, answers }, act) {
  const schema = turn.request.response_format?.json_schema.schema;
  const name = `chosen-${turn.id}`;
  answers.forEach((one, i) => {
    const { data } = one;
    if (answers.length > 1) {
      one.tools.append(make("label", { className: "check" }, make("input", { type: "radio", name, checked: i === turn.chosen,
        onchange: () => act.choose(turn, i) }), "Go on with this one"));
    }
    if (data.calls.some(Boolean)) one.tools.append(button("Send results", () => act.sendResults(turn, i)));
    else if (schema && turn.isWhole) one.judge(schema);
  });
  const [first] = answers;
  const resume = (label) => button(label, () => act.resume(turn));
  if (!turn.isWhole) {
    const problem = first.data.problem ?? "The answer is not whole: the page was closed while it came.";
    first.note(`${problem} `, "error", resume("Try again"));
  } else if (answers.length === 1 && (first.data.finish === "length" || first.data.finish === "stopped")) {
    first.tools.append(resume("Go on"));
  }
}
