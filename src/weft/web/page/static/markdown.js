// Markdown as elements, made anew only where it changes while an answer grows. Markup of HTML stays text.

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { inline } from "./inline.js";
import { mathNode } from "./math.js";

const MAX_DEPTH = 8; // of quotes and lists within each other
const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(?=\S)|\s*$)/;
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MATH_ENDS = { "$$": "$$", "\\[": "\\]" };

/** The element of a growing text. Blocks that stay the same keep their elements. */
export class Markdown {
  #blocks = [];

  constructor() {
    this.node = make("div", { className: "markdown" });
  }

  show(text) {
    const blocks = parse(text.split("\n"), 0);
    let same = 0;
    while (same < blocks.length && this.#blocks[same]?.source === blocks[same].source) same += 1;
    for (const old of this.#blocks.splice(same)) old.node.remove();
    for (const block of blocks.slice(same)) {
      block.node = block.render();
      this.#blocks.push(block);
      this.node.append(block.node);
    }
  }
}

/** The blocks of some lines, each { source, render }. */
function parse(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [end, render] = blockAt(lines, at, depth);
    blocks.push({ source: lines.slice(at, end).join("\n"), render });
    at = end;
  }
  return blocks;
}

const rendered = (lines, depth) => parse(lines, depth).map((block) => block.render());

/** Where the block that begins at a line ends, and what makes its element. */
function blockAt(lines, at, depth) {
  const found = fence(lines, at) ?? displayMath(lines, at) ?? heading(lines, at) ?? table(lines, at);
  if (found) return found;
  if (RULE.test(lines[at])) return [at + 1, () => make("hr")];
  if (depth < MAX_DEPTH && QUOTE.test(lines[at])) return quote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(lines[at])) return list(lines, at, depth);
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return [end, () => make("p", {}, inline(text))];
}

function interrupts(lines, at) {
  const line = lines[at];
  return !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || isItem(line) || line.trim().startsWith("$$") || line.trim().startsWith("\\[") || isTable(lines, at);
}

const isItem = (line) => {
  const found = ITEM.exec(line);
  return found !== null && found[0].length < line.length;
};

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, indent, mark, language] = open;
  const close = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const stripped = new RegExp(`^ {0,${indent.length}}`);
  const code = lines.slice(at + 1, end).map((line) => line.replace(stripped, "")).join("\n");
  return [Math.min(end + 1, lines.length), () => codeBlock(code, language)];
}

function displayMath(lines, at) {
  const first = lines[at].trim();
  const close = MATH_ENDS[first.slice(0, 2)];
  if (!close) return null;
  for (let end = at; end < lines.length && lines[end].trim(); end += 1) {
    const text = end === at ? first.slice(2) : lines[end].trimEnd();
    if (!text.endsWith(close)) continue;
    const source = [first.slice(2), ...lines.slice(at + 1, end + 1)].join("\n").trimEnd().slice(0, -2);
    return source.includes(close) ? null : [end + 1, () => mathNode(source, true)];
  }
  return null;
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  // The page has headings of its own above: those of an answer are below them.
  const level = Math.min(found[1].length + 2, 6);
  return [at + 1, () => make(`h${level}`, { className: `level-${found[1].length}` }, inline(found[2] ?? ""))];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [end, () => make("blockquote", {}, rendered(inner, depth + 1))];
}

/** The items of a list; a line belongs to one if it is indented as its text is, or continues its paragraph. */
function list(lines, at, depth) {
  const [, base, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const kind = mark.at(-1);
  const items = [];
  let end = at;
  let width = 0;
  let isLoose = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const indent = line.length - line.trimStart().length;
    const found = ITEM.exec(line);
    const isNext = found && indent < width && indent >= base.length && !RULE.test(line);
    if (items.length === 0 || (isNext && found[2].at(-1) === kind && /\d/.test(found[2]) === isOrdered)) {
      width = found[1].length + found[2].length + Math.min(found[3]?.length ?? 1, 4);
      items.push([line.slice(width)]);
    } else if (!line.trim()) {
      const next = lines.slice(end + 1).find((one) => one.trim());
      const nextItem = next && ITEM.exec(next);
      const isInside = next && (next.length - next.trimStart().length >= Math.min(width, base.length + 2)
        || (nextItem && nextItem[2].at(-1) === kind && nextItem[1].length >= base.length));
      if (!isInside) break;
      if (nextItem && next.length - next.trimStart().length < width) isLoose = true;
      items.at(-1).push("");
    } else if (indent >= Math.min(width, base.length + 2)) items.at(-1).push(line.slice(Math.min(indent, width)));
    else if (lines[end - 1].trim() && !interrupts(lines, end)) items.at(-1).push(line.trim());
    else break;
  }
  return [end, () => make(isOrdered ? "ol" : "ul", { start: isOrdered ? Number.parseInt(mark, 10) : null },
    items.map((item) => itemNode(item, isLoose, depth)))];
}

function itemNode(item, isLoose, depth) {
  const task = /^\[([ xX])\]\s+/.exec(item[0]);
  const lines = task ? [item[0].slice(task[0].length), ...item.slice(1)] : item;
  const blocks = rendered(lines, depth + 1);
  if (!isLoose && blocks[0]?.tagName === "P") blocks.splice(0, 1, ...blocks[0].childNodes);
  const box = task && make("input", { type: "checkbox", checked: task[1] !== " ", disabled: true,
    "aria-label": task[1] === " " ? "Not done" : "Done" });
  return make("li", { className: task ? "task" : "" }, box, blocks);
}

const isTable = (lines, at) => lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-")
  && DELIMITERS.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const head = cells(lines[at]);
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => head.map((_, i) => cells(line)[i] ?? ""));
  const sides = cells(lines[at + 1]).map((mark) =>
    mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left");
  return [end, () => tableNode(head, rows, sides)];
}

function tableNode(head, rows, sides) {
  const row = (tag, texts) => make("tr", {}, texts.map((text, i) => {
    const cell = make(tag, tag === "th" ? { scope: "col" } : {}, inline(text));
    cell.style.textAlign = sides[i];
    return cell;
  }));
  return make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Table" },
    make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, rows.map((texts) => row("td", texts)))));
}

/** The cells of a row; a bar in code or behind a backslash divides nothing. */
function cells(line) {
  const bare = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  const found = [""];
  for (const [part] of bare.matchAll(/\\\||`[^`]*`|\||[^\\|`]+|[\\`]/g)) {
    if (part === "|") found.push("");
    else found[found.length - 1] += part === "\\|" ? "|" : part;
  }
  return found.map((text) => text.trim());
}
