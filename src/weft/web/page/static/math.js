// Mathematics in LaTeX's words as MathML, which browsers draw themselves. What cannot be read stays as it was written.

import { make } from "./dom.js";
import { ACCENTS, ALPHABET_NAMES, FUNCTIONS, inAlphabet, LARGE, LETTERS, OPEN_CLOSE, OPERATORS, SPACES, UNDER } from "./mathsymbols.js";

const SPACE = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 60;
const TOKENS = /\\(?:[A-Za-z]+\*?|[^])|[{}^_&~]|\d+(?:[.,]\d+)*|\s+|[^]/g;
const TEXTS = new Set(["text", "textrm", "textit", "textbf", "textsf", "texttt", "mbox", "mathrm", "operatorname", "operatorname*", "mathit", "rm"]);
const SIZES = new Set(["big", "Big", "bigg", "Bigg", "bigl", "Bigl", "biggl", "Biggl", "bigr", "Bigr", "biggr", "Biggr", "bigm", "middle"]);
const IGNORED = new Set(["displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "nonumber", "notag", "hline", "allowbreak"]);

class Unreadable extends Error {}

/** The element of a formula. */
export function mathNode(source, isDisplay) {
  try {
    const parser = new Parser(source);
    const math = element("math", parser.row(() => false));
    if (parser.peek() !== undefined) throw new Unreadable();
    math.setAttribute("display", isDisplay ? "block" : "inline");
    math.setAttribute("alttext", source.trim());
    if (!isDisplay) return math;
    return make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Formula" }, math);
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    return make("code", {}, source.trim());
  }
}

function element(name, children, attributes = {}) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...[children].flat());
  return node;
}

const grouped = (nodes) => nodes.length === 1 ? nodes[0] : element("mrow", nodes);
const operator = (text, attributes) => element("mo", text, attributes);
const fence = (text) => operator(text === "." ? "" : text, { fence: "true", stretchy: "true" });

class Parser {
  #tokens;
  #at = 0;
  #depth = 0;
  #alphabet = null;

  constructor(source) {
    this.#tokens = source.trim().replace(/(?<!\\)%[^\n]*/g, "").match(TOKENS) ?? [];
  }

  peek() {
    while (/^\s/.test(this.#tokens[this.#at] ?? "")) this.#at += 1;
    return this.#tokens[this.#at];
  }

  #next() {
    const token = this.peek();
    if (token === undefined) throw new Unreadable();
    this.#at += 1;
    return token;
  }

  /** The nodes up to a token that ends them, which is not taken. */
  row(isEnd) {
    if ((this.#depth += 1) > MAX_DEPTH) throw new Unreadable();
    const nodes = [];
    for (let token = this.peek(); token !== undefined && !isEnd(token); token = this.peek()) {
      if (token === "}" || token === "\\right" || token === "\\end") throw new Unreadable();
      if (token === "&" || token === "\\\\") this.#next();
      else nodes.push(...this.#scripted());
    }
    this.#depth -= 1;
    return nodes;
  }

  /** One thing with what stands above and below of it. */
  #scripted() {
    const [base, hasLimits] = this.#atom();
    let under = null;
    let over = null;
    for (let token = this.peek(); token === "^" || token === "_" || token === "'" || token === "\\limits" || token === "\\nolimits"; token = this.peek()) {
      this.#next();
      if (token === "'") over = over ? grouped([over, operator("′")]) : operator("′");
      else if (token === "_") under = this.#argument();
      else if (token === "^") over = over ? grouped([over, this.#argument()]) : this.#argument();
    }
    if (!under && !over) return base ? [base] : [];
    const [below, above, both] = hasLimits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const inside = base ?? element("mrow", []);
    return [under && over ? element(both, [inside, under, over]) : element(under ? below : above, [inside, under ?? over])];
  }

  #argument() {
    const token = this.peek();
    if (token === "{") return this.#group();
    // A number as an argument is its first digit: x^12 is x¹2.
    if (/^\d{2}/.test(token ?? "")) this.#tokens.splice(this.#at, 1, token[0], token.slice(1));
    return this.#atom()[0] ?? element("mrow", []);
  }

  #group() {
    this.#next();
    const nodes = this.row((token) => token === "}");
    this.#next();
    return grouped(nodes);
  }

  /** The text between braces, as it is written. */
  #raw() {
    if (this.peek() !== "{") return this.#next();
    let text = "";
    for (let depth = 0; ;) {
      const token = this.#tokens[this.#at];
      if (token === undefined) throw new Unreadable();
      this.#at += 1;
      if (token === "{" && (depth += 1) === 1) continue;
      if (token === "}" && (depth -= 1) === 0) return text;
      text += token.replace(/^\\([^A-Za-z])$/, "$1");
    }
  }

  /** [node, whether its limits stand above and below]. */
  #atom() {
    const token = this.peek();
    if (token === "{") return [this.#group(), false];
    if (token === "^" || token === "_") return [null, false];
    this.#next();
    if (token.startsWith("\\")) return this.#command(token.slice(1));
    if (token === "~") return [space(0.25), false];
    if (/^\d/.test(token)) return [element("mn", this.#styled(token)), false];
    if (/^\p{L}$/u.test(token)) return [element("mi", this.#styled(token)), false];
    if (token === "-") return [operator("−"), false];
    if ("()[]|".includes(token)) return [operator(token, { stretchy: "false" }), false];
    return [operator(token), false];
  }

  #styled(text) {
    return this.#alphabet ? inAlphabet(text, this.#alphabet) : text;
  }

  #command(name) {
    const large = Object.hasOwn(LARGE, name) ? LARGE[name] : null;
    if (large) return [operator(large[0], { largeop: "true", movablelimits: "true" }), large[1]];
    if (Object.hasOwn(FUNCTIONS, name)) return [named(name), FUNCTIONS[name]];
    if (Object.hasOwn(LETTERS, name)) return [element("mi", LETTERS[name]), false];
    if (Object.hasOwn(OPERATORS, name)) return [operator(OPERATORS[name], { stretchy: "false" }), false];
    if (Object.hasOwn(SPACES, name)) return [space(SPACES[name]), false];
    if (Object.hasOwn(ACCENTS, name)) return [this.#accent("mover", ACCENTS[name]), name === "overbrace"];
    if (Object.hasOwn(UNDER, name)) return [this.#accent("munder", UNDER[name]), name === "underbrace"];
    if (Object.hasOwn(ALPHABET_NAMES, name)) return [this.#inAlphabet(ALPHABET_NAMES[name]), false];
    if (TEXTS.has(name)) return [this.#text(name), name === "operatorname*"];
    if (SIZES.has(name)) return [operator(this.#delimiter(), { stretchy: "true" }), false];
    if (IGNORED.has(name)) return [null, false];
    return [this.#structure(name), false];
  }

  #structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return element("mfrac", [this.#argument(), this.#argument()]);
      case "binom": case "dbinom": case "tbinom":
        return element("mrow", [fence("("), element("mfrac", [this.#argument(), this.#argument()], { linethickness: "0" }), fence(")")]);
      case "sqrt": return this.#root();
      case "left": return this.#fenced();
      case "begin": return this.#environment();
      case "stackrel": case "overset": {
        const above = this.#argument();
        return element("mover", [this.#argument(), above]);
      }
      case "underset": {
        const below = this.#argument();
        return element("munder", [this.#argument(), below]);
      }
      case "not": return operator(`${this.#delimiter()}\u0338`);
      case "boxed": return element("mrow", this.#argument(), { class: "boxed" });
      case "phantom": return element("mphantom", this.#argument());
      case "pmod": return element("mrow", [operator("("), named("mod"), space(0.25), this.#argument(), operator(")")]);
      case "bmod": case "mod": return named("mod");
      case "tag": case "tag*": return element("mtext", `\u2003(${this.#raw()})`);
      case "label": case "color": case "hspace": case "vspace": this.#raw(); return element("mrow", []);
      case "\\": return space(0);
      default: return element("mtext", `\\${name}`);
    }
  }

  #text(name) {
    const text = this.#raw();
    if (name.startsWith("operatorname")) return named(text);
    return name.startsWith("math") || name === "rm" ? element("mi", text, { mathvariant: "normal" }) : element("mtext", text.replace(/^ | $/g, "\u00a0"));
  }

  #accent(place, char) {
    const isWide = "‾⏞⏟_→←".includes(char);
    return element(place, [this.#argument(), operator(char, { stretchy: String(isWide) })], { [place === "mover" ? "accent" : "accentunder"]: "true" });
  }

  #inAlphabet(alphabet) {
    const outer = this.#alphabet;
    this.#alphabet = alphabet;
    const node = this.#argument();
    this.#alphabet = outer;
    return node;
  }

  #root() {
    if (this.peek() !== "[") return element("msqrt", this.#argument());
    this.#next();
    const index = grouped(this.row((token) => token === "]"));
    this.#next();
    return element("mroot", [this.#argument(), index]);
  }

  #delimiter() {
    const token = this.#next();
    if (!token.startsWith("\\")) return token;
    const name = token.slice(1);
    if (!Object.hasOwn(OPERATORS, name)) throw new Unreadable();
    return OPERATORS[name];
  }

  #fenced() {
    const open = fence(this.#delimiter());
    const inner = this.row((token) => token === "\\right");
    this.#next();
    return element("mrow", [open, ...inner, fence(this.#delimiter())]);
  }

  #environment() {
    const name = this.#raw();
    if (!Object.hasOwn(OPEN_CLOSE, name)) throw new Unreadable();
    if (name === "array") this.#raw();
    const rows = [[]];
    const isEnd = (token) => token === "&" || token === "\\\\" || token === "\\end";
    for (;;) {
      rows.at(-1).push(element("mtd", this.row(isEnd)));
      const token = this.#next();
      if (token === "\\end") break;
      if (token === "\\\\") rows.push([]);
    }
    if (this.#raw() !== name) throw new Unreadable();
    const isAligned = /align|split|cases|eqnarray/.test(name);
    const table = element("mtable", rows.map((cells) => element("mtr", cells)), { class: isAligned ? `aligned ${name}` : "" });
    const [open, close] = OPEN_CLOSE[name];
    return element("mrow", [open && fence(open), table, close && fence(close)].filter(Boolean));
  }
}

const space = (ems) => element("mspace", [], { width: `${ems}em` });
const named = (text) => element("mi", text.replace(/^arg(?=m)/, "arg\u2009"), { mathvariant: "normal" });
