// The tokens of an answer: how likely each was, what else might have stood there, and a way to go on from that.

import { button, make } from "./dom.js";

const decode = (bytes) => {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null; // part of a character
  }
};
const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return share >= 99.95 ? "100 %" : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
};
const GAP = 6; // pixels between a token and its box
const visible = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "→\t") || "∅";

export class TokenView {
  #buttons = make("div", { className: "tokens", role: "group", "aria-label": "Tokens, darker the less likely" });
  #box = make("div", { className: "token-box", popover: "auto", role: "dialog", "aria-label": "What else might have stood there" });
  #tokens = [];
  #goOn;

  /** `goOn(text, tokens)` is called with the answer's new beginning. */
  constructor(goOn) {
    this.#goOn = goOn;
    this.node = make("div", { hidden: true },
      make("p", { className: "soft" }, "Choose a token to see what else might have stood there."),
      this.#buttons, this.#box);
    this.content = () => "";
    this.#box.addEventListener("toggle", ({ newState }) => {
      if (newState === "closed") this.#press(null);
    });
  }

  clear() {
    this.#tokens = [];
    this.#buttons.replaceChildren();
  }

  add(tokens) {
    for (const token of tokens) {
      const place = this.#tokens.push(token) - 1;
      const label = `${visible(token.token)}, ${percent(token.logprob)}`;
      const one = make("button", { type: "button", title: label, "aria-label": label, "aria-pressed": "false",
        onclick: () => this.#show(place) }, visible(token.token));
      one.style.setProperty("--p", Math.exp(token.logprob).toFixed(3));
      this.#buttons.append(one);
    }
  }

  #press(place) {
    this.#buttons.querySelector("[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
    if (place !== null) this.#buttons.children[place].setAttribute("aria-pressed", "true");
  }

  #show(place) {
    this.#press(place);
    const taken = this.#tokens[place];
    const others = taken.top_logprobs ?? [];
    const all = others.some((one) => one.token === taken.token) ? others : [taken, ...others];
    const rows = all.map((one) => {
      const begun = this.#begin(place, one);
      const name = `Go on from here: ${visible(one.token)}`;
      const action = begun === null ? "cannot be gone on from"
        : button("Go on from here", () => this.#goOn(begun, [...this.#tokens.slice(0, place), { ...taken, ...one }]),
          { "aria-label": name });
      const meter = make("meter", { max: 1, value: Math.exp(one.logprob), "aria-label": "Probability" });
      const text = make("code", {}, visible(one.token));
      return make("tr", {}, make("td", {}, one.token === taken.token ? make("strong", {}, text) : text),
        make("td", {}, percent(one.logprob)), make("td", {}, meter), make("td", {}, action));
    });
    const unseen = ["Probability as a bar", "What to do"].map((text) => make("span", { className: "unseen" }, text));
    const head = ["Token", "Probability", ...unseen].map((one) => make("th", { scope: "col" }, one));
    this.#box.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
    this.#open(this.#buttons.children[place]);
  }

  /** Below the token, or where there is no room, above it. */
  #open(token) {
    const box = this.#box;
    if (!box.matches(":popover-open")) box.showPopover();
    const at = token.getBoundingClientRect();
    const { width, height } = box.getBoundingClientRect();
    const isAbove = at.bottom + height + GAP > innerHeight && at.top > height + GAP;
    box.style.left = `${Math.max(GAP, Math.min(at.left, innerWidth - width - GAP))}px`;
    box.style.top = `${isAbove ? at.top - height - GAP : Math.min(at.bottom + GAP, innerHeight - height - GAP)}px`;
    box.querySelector("button")?.focus({ preventScroll: true });
    token.closest("#scroll")?.addEventListener("scroll", () => box.hidePopover(), { once: true }); // the token moves away
  }

  /** The answer's text up to `place` and `token` in its place; null where that is no text that was answered. */
  #begin(place, token) {
    const before = this.#tokens.slice(0, place).flatMap((one) => one.bytes ?? []);
    const text = decode([...before, ...(token.bytes ?? [])]);
    const kept = decode(before);
    const isMark = /^<[|｜][^<>]*[|｜]>$|^<\/?s>$|^$/.test(token.token);
    if (text === null || kept === null || isMark) return null;
    return this.content().startsWith(kept) ? text : null;
  }
}
