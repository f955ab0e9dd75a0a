// The answers under way as bars through queue, prefill and decode; and the KV pool's blocks by who holds them.

import { make, number } from "./dom.js";

const MAX_ROWS = 48;
const SHOWN_AFTER_S = 8; // so long an answer that has ended stays in sight
const CELLS = 240;
const PHASES = ["queue", "prefill", "decode"];

const seconds = (state) => PHASES.map((phase) => state[`${phase}_s`] ?? 0);
const total = (state) => seconds(state).reduce((all, one) => all + one, 0);
// Neighbours in the order of arrival are far apart in colour.
const paint = (element, one) => element.style.setProperty("--hue", String(Math.round(one * 137.5) % 360));

class Row {
  #swatch = make("i", { className: "swatch" });
  #parts = PHASES.map((phase) => make("i", { className: phase }));
  #text = make("span", { className: "soft" });

  constructor(one) {
    paint(this.#swatch, one);
    this.node = make("li", {}, make("span", { className: "name" }, this.#swatch, `#${one}`),
      make("span", { className: "phases", "aria-hidden": "true" }, this.#parts), this.#text);
  }

  show(state, longest) {
    seconds(state).forEach((one, i) => this.#parts[i].style.setProperty("--share", (one / longest).toFixed(4)));
    this.node.className = state.phase === "finished" ? "over" : "";
    this.#text.textContent = describe(state);
  }
}

function describe(state) {
  const isHeldUp = !state.is_running && !["queued", "finished"].includes(state.phase);
  const words = [isHeldUp ? `${state.phase}, preempted` : state.phase, `${number(total(state), 1)} s`];
  if (state.phase === "prefill") {
    words.push(`${number(state.num_computed_tokens)} of ${number(state.num_prompt_tokens)} prompt tokens`);
  } else {
    const cached = state.num_cached_tokens ? ` (${number(state.num_cached_tokens)} cached)` : "";
    words.push(`${number(state.num_prompt_tokens)} prompt tokens${cached}`);
  }
  if (state.num_output_tokens) words.push(`${number(state.num_output_tokens)} generated`);
  if (state.num_blocks) {
    const shared = state.num_shared_blocks ? `, ${number(state.num_shared_blocks)} shared` : "";
    words.push(`${number(state.num_blocks)} blocks${shared}`);
  }
  return words.join(" · ");
}

/** The bars of one rank. */
export class Bars {
  #rows = new Map();
  #list = make("ol", { className: "requests" });
  #note = make("p", { className: "soft" });

  constructor() {
    const key = PHASES.map((phase) => make("span", {}, make("i", { className: `swatch ${phase}` }), ` ${phase} `));
    this.node = make("div", {}, make("h4", {}, "Requests"), make("p", { className: "soft row" }, key),
      this.#list, this.#note);
  }

  show(states) {
    const over = states.finished.filter((state) => state.finished_s < SHOWN_AFTER_S);
    const shown = [...states.requests, ...over].slice(0, MAX_ROWS);
    const longest = Math.max(...shown.map(total), 0.1);
    const before = this.#rows;
    this.#rows = new Map(shown.map((state) => [state.number, before.get(state.number) ?? new Row(state.number)]));
    shown.forEach((state) => this.#rows.get(state.number).show(state, longest));
    this.#list.replaceChildren(...[...this.#rows.values()].map((row) => row.node));
    const numMore = states.num_unlisted + states.requests.length + over.length - shown.length;
    this.#note.textContent = shown.length
      ? `The longest bar is ${number(longest, 1)} s.${numMore ? ` ${number(numMore)} more are not shown.` : ""}`
      : "None at the moment.";
  }

  refuse(reason) {
    this.#list.replaceChildren();
    this.#note.textContent = reason;
  }
}

/** The pool as squares: each is a block, or so many that all of them fit. Their order is by holder, not by place. */
export class Pool {
  #cells = Array.from({ length: CELLS }, () => make("i"));
  #key = make("p", { className: "soft" });

  constructor() {
    this.node = make("div", {}, make("div", { className: "pool", "aria-hidden": "true" }, this.#cells), this.#key);
  }

  show(states) {
    const groups = groupsOf(states);
    const per = Math.max(1, Math.ceil(states.num_blocks / CELLS));
    const cells = groups.filter((group) => group.num > 0).flatMap((group) =>
      Array.from({ length: Math.max(1, Math.round(group.num / per)) }, () => group));
    const last = Math.ceil(states.num_blocks / per);
    this.#cells.forEach((cell, i) => {
      const group = i < last ? cells[i] : undefined;
      cell.className = i >= last ? "none" : group?.name ?? "";
      if (group?.number !== undefined) paint(cell, group.number);
    });
    const size = per > 1 ? `A square is ${number(per)} blocks, and no holder has less than one. ` : "A square is a block. ";
    this.#key.textContent = `${size}A colour is one request's, as in its bar; striped: ${number(states.num_shared_blocks)}` +
      ` shared by several; pale: ${number(states.num_cached_blocks)} free and still cached.`;
  }
}

function groupsOf(states) {
  const own = states.requests.map((state) =>
    ({ name: "own", number: state.number, num: state.num_blocks - state.num_shared_blocks }));
  const rest = states.num_held_blocks - states.num_shared_blocks - own.reduce((all, one) => all + one.num, 0);
  return [{ name: "shared", num: states.num_shared_blocks }, ...own, { name: "held", num: rest },
    { name: "cached", num: states.num_cached_blocks }];
}
