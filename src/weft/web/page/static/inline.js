// The inside of a paragraph: emphasis, code, links and mathematics, as nodes.

import { make } from "./dom.js";
import { mathNode } from "./math.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const TOKEN = new RegExp([
  /(?<escape>\\[!-/:-@[-`{-~])/,
  /(?<code>(?<!`)(?<ticks>`+)(?!`)(?<inner>[^]*?[^`])\k<ticks>(?!`))/,
  /(?<display>\$\$(?<displayed>[^$]+)\$\$)/,
  /(?<math>\$(?=\S)(?<formula>(?:[^$\\\n]|\\.)*[^\s$\\]|\\.)\$(?!\d))/,
  /!?\[(?<label>(?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?(?<target>[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/,
  /<(?<auto>(?:https?:|mailto:)[^\s<>]+)>/,
  /(?<![\w/])(?<bare>https?:\/\/[^\s<>"'`\]]+)/,
  /(?<newline><br\s*\/?>)/,
  /(?<mark>\*+|_+|~~)/,
].map((one) => one.source).join("|"), "g");
const BRACKETED = [["\\(", "\\)", false], ["\\[", "\\]", true]];

/** The nodes of a text. */
export function inline(text) {
  const parts = [];
  const addText = (plain) => plain && parts.push(document.createTextNode(plain));
  for (const [source, formula, isDisplay] of withoutBracketedMath(text)) {
    if (formula !== null) parts.push(mathNode(formula, isDisplay));
    else collect(source, parts, addText);
  }
  return emphasised(parts);
}

/** Pieces of a text: [text, null], or ["", formula, isDisplay] for what stands in \( \) or \[ \]. */
function* withoutBracketedMath(text) {
  let rest = text;
  for (;;) {
    const found = BRACKETED.map(([open, close, isDisplay]) => {
      const from = rest.indexOf(open);
      const to = from < 0 ? -1 : rest.indexOf(close, from + 2);
      return { from, to, isDisplay };
    }).filter(({ to, from }) => to > 0 && !isInCode(rest, from)).sort((a, b) => a.from - b.from)[0];
    if (!found) break;
    yield [rest.slice(0, found.from), null];
    yield ["", rest.slice(found.from + 2, found.to), found.isDisplay];
    rest = rest.slice(found.to + 2);
  }
  yield [rest, null];
}

const isInCode = (text, at) => (text.slice(0, at).match(/`/g)?.length ?? 0) % 2 === 1;

function collect(text, parts, addText) {
  let last = 0;
  for (const found of text.matchAll(TOKEN)) {
    addText(text.slice(last, found.index));
    last = found.index + found[0].length;
    const before = text[found.index - 1] ?? " ";
    const part = partOf(found, before, text[last] ?? " ");
    if (typeof part === "string") addText(part);
    else if (Array.isArray(part)) {
      parts.push(part[0]);
      addText(part[1]);
    } else parts.push(part);
  }
  addText(text.slice(last));
}

/** A text, a node, a node with the text behind it, or a run of marks: { mark, num, opens, closes }. */
function partOf({ 0: all, groups: found }, before, after) {
  if (found.escape) return all.slice(1);
  if (found.code) return make("code", {}, found.inner.replace(/^ (.*\S.*) $/s, "$1"));
  if (found.display) return mathNode(found.displayed, true);
  if (found.math) return mathNode(found.formula, false);
  if (found.label !== undefined) return all.startsWith("!") ? picture(found) : link(found.target, inline(found.label)) ?? all;
  if (found.auto) return link(found.auto, [found.auto.replace(/^mailto:/, "")]) ?? all;
  if (found.bare) return bare(found.bare);
  if (found.newline) return make("br");
  return run(all, before, after);
}

/** A link that leaves the page alone: to the web or to a mailbox, and never to a script. */
function link(target, nodes) {
  if (!URL.canParse(target) || !SCHEMES.has(new URL(target).protocol)) return null;
  return make("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, nodes);
}

/** A picture of another server is not loaded: it would tell that server who reads. */
function picture({ label, target }) {
  const words = `Picture: ${label || "without a description"}`;
  return link(target, [words]) ?? make("em", {}, words);
}

function bare(address) {
  const end = /[.,;:!?*_~)]*$/.exec(address);
  const closing = end[0].startsWith(")") && address.slice(0, end.index).includes("(") ? 1 : 0;
  const url = address.slice(0, end.index + closing);
  return [link(url, [url]) ?? document.createTextNode(url), address.slice(url.length)];
}

const isSpace = (char) => /\s/.test(char);
const isPunctuation = (char) => /[\p{P}\p{S}]/u.test(char);

function run(marks, before, after) {
  const isLeft = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
  const isRight = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
  const isWord = marks[0] === "_"; // within a word it is no emphasis
  return { mark: marks[0], num: marks.length, opens: isLeft && (!isWord || !isRight || isPunctuation(before)),
    closes: isRight && (!isWord || !isLeft || isPunctuation(after)) };
}

const TAGS = { "*": ["em", "strong"], "_": ["em", "strong"], "~": ["del", "del"] };

/** The parts with each closing run joined to the nearest opening run of its mark. */
function emphasised(parts) {
  const out = [];
  const open = { "*": [], "_": [], "~": [] }; // places in `out`
  for (const part of parts) {
    if (part instanceof Node) out.push(part);
    else {
      if (part.closes) closeRuns(part, out, open);
      if (part.num > 0) {
        if (part.opens) open[part.mark].push(out.length);
        out.push(part);
      }
    }
  }
  return out.map((part) => part instanceof Node ? part : document.createTextNode(part.mark.repeat(part.num)));
}

function closeRuns(part, out, open) {
  const places = open[part.mark];
  while (part.num > 0 && places.length) {
    const place = places.at(-1);
    const opener = out[place];
    const num = part.mark === "~" ? 2 : Math.min(2, part.num, opener.num);
    const inner = out.splice(place + 1).map((one) => one instanceof Node ? one
      : document.createTextNode(one.mark.repeat(one.num)));
    for (const others of Object.values(open)) while (others.length && others.at(-1) > place) others.pop();
    opener.num -= num;
    part.num -= num;
    if (opener.num === 0) {
      out.pop();
      places.pop();
    }
    out.push(make(TAGS[part.mark][num - 1], {}, inner));
  }
}
