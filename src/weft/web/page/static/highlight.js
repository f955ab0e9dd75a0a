// Colours of code: comments, strings, numbers and words of a language, by one pass of a regular expression.

import { make } from "./dom.js";

const words = (text) => new Set(text.split(" "));
const C_COMMENTS = String.raw`//[^\n]*|/\*[^]*?(?:\*/|$)`;
const HASH = String.raw`#[^\n]*`;
const QUOTES = String.raw`"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?`;
const BACKTICKS = "`(?:[^`\\\\]|\\\\[^])*`?";
const NUMBERS = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;
const WORD = String.raw`[A-Za-z_$@][\w$]*`;

const C_WORDS = "if else for while do switch case default break continue return struct enum union typedef static const "
  + "void int char float double long short unsigned signed bool auto sizeof extern volatile goto inline";
const CPP_WORDS = `${C_WORDS} class public private protected virtual override template typename namespace using new delete `
  + "this try catch throw operator friend constexpr noexcept explicit mutable concept requires co_await co_return co_yield nullptr";
const JAVA_WORDS = "abstract boolean break byte case catch char class const continue default do double else enum extends final "
  + "finally float for if implements import instanceof int interface long native new package private protected public record "
  + "return sealed short static super switch synchronized this throw throws transient try var void volatile while yield";
const JS_WORDS = "async await break case catch class const continue debugger default delete do else export extends finally for "
  + "from function get if import in instanceof let new of return set static super switch this throw try typeof var void while "
  + "with yield interface type enum implements private public protected readonly declare namespace abstract as keyof";
const language = (keywords, { comment = C_COMMENTS, string = QUOTES, ignoresCase = false } = {}) =>
  ({ comment, string, keywords: words(keywords), ignoresCase });

const LANGUAGES = {
  python: language("and as assert async await break case class continue def del elif else except finally for from global if "
    + "import in is lambda match nonlocal not or pass raise return try type while with yield self",
  { comment: HASH, string: String.raw`(?:\b[rbfuRBFU]{1,2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${QUOTES})` }),
  javascript: language(JS_WORDS, { string: `${QUOTES}|${BACKTICKS}` }),
  c: language(C_WORDS),
  cpp: language(CPP_WORDS),
  java: language(JAVA_WORDS),
  csharp: language(`${JAVA_WORDS} as async await base bool decimal delegate dynamic event foreach get in internal is lock `
    + "namespace object operator out override params readonly ref set sizeof string struct typeof using virtual where"),
  go: language("break case chan const continue default defer else fallthrough for func go goto if import interface map package "
    + "range return select struct switch type var string int bool error byte rune any", { string: `${QUOTES}|${BACKTICKS}` }),
  rust: language("as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut "
    + "pub ref return self Self static struct super trait type unsafe use where while",
  { string: String.raw`"(?:[^"\\]|\\[^])*"?|'(?:[^'\\\n]|\\[^\n]{1,8})'` }),
  kotlin: language("as break by catch class companion continue data do else enum finally for fun if import in interface is "
    + "lateinit object open override package private public return sealed super suspend this throw try typealias val var when while"),
  swift: language("actor as async await break case catch class continue default defer do else enum extension for func guard if "
    + "import in init inout is let nil override private protocol public return self static struct super switch throw throws try var where while"),
  ruby: language("alias and begin break case class def do else elsif end ensure for if in module next not or redo rescue retry "
    + "return self super then unless until when while yield require attr_accessor", { comment: HASH }),
  php: language(`${JAVA_WORDS} echo foreach function namespace use as fn match elseif array`,
    { comment: `${C_COMMENTS}|${HASH}` }),
  bash: language("if then else elif fi for in do done while until case esac function return exit export local set unset source "
    + "echo cd sudo read shift trap alias eval exec test", { comment: String.raw`(?<![\w$&{])#[^\n]*` }),
  sql: language("select from where and or not in is null as on join left right inner outer full cross group by order having limit "
    + "offset insert into values update set delete create table alter drop index view with union all distinct case when then else "
    + "end primary key foreign references default unique check exists between like asc desc begin commit rollback returning",
  { comment: String.raw`--[^\n]*|/\*[^]*?(?:\*/|$)`, ignoresCase: true }),
  lua: language("and break do else elseif end for function goto if in local not or repeat return then until while",
    { comment: String.raw`--\[\[[^]*?(?:\]\]|$)|--[^\n]*` }),
  r: language("if else for while repeat function return next break in library", { comment: HASH }),
  json: language(""),
  yaml: language("", { comment: String.raw`(?<=^|\s)#[^\n]*` }),
  toml: language("", { comment: HASH }),
  dockerfile: language("FROM RUN CMD LABEL EXPOSE ENV ADD COPY ENTRYPOINT VOLUME USER WORKDIR ARG ONBUILD HEALTHCHECK SHELL AS",
    { comment: HASH }),
  css: language("important media supports import keyframes", { comment: String.raw`/\*[^]*?(?:\*/|$)` }),
};
const NAMES = { py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript",
  typescript: "javascript", node: "javascript", mjs: "javascript", h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", cuda: "cpp",
  cs: "csharp", "c#": "csharp", golang: "go", rs: "rust", kt: "kotlin", rb: "ruby", sh: "bash", shell: "bash", zsh: "bash",
  console: "bash", yml: "yaml", ini: "toml", jsonc: "json", jsonl: "json", scss: "css", docker: "dockerfile", scala: "kotlin" };
const LITERALS = words("true false null undefined None True False nil NaN Infinity NULL nullptr");
const patterns = new Map();

function patternOf(name) {
  if (!patterns.has(name)) {
    const { comment, string } = LANGUAGES[name];
    patterns.set(name, new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<number>${NUMBERS})|(?<word>${WORD})`, "gm"));
  }
  return patterns.get(name);
}

/** The nodes of some code; of a language that is not known, its plain text. */
export function highlighted(code, given) {
  const name = NAMES[given] ?? given;
  if (name === "diff" || name === "patch") return [...diff(code)];
  if (name === "html" || name === "xml" || name === "svg" || name === "vue") return [...markup(code)];
  return Object.hasOwn(LANGUAGES, name) ? [...coloured(code, name)] : [code];
}

const span = (className, text) => make("span", { className: `hl-${className}` }, text);

function* coloured(code, name) {
  const { keywords, ignoresCase } = LANGUAGES[name];
  const hasKeys = name === "json" || name === "yaml" || name === "toml" || name === "css";
  let last = 0;
  for (const { 0: text, index, groups } of code.matchAll(patternOf(name))) {
    const end = index + text.length;
    const word = ignoresCase ? text.toLowerCase() : text;
    const kind = kindOf(word, groups, code.slice(end, end + 3), keywords, hasKeys);
    if (!kind) continue;
    if (index > last) yield code.slice(last, index);
    yield span(kind, text);
    last = end;
  }
  yield code.slice(last);
}

function kindOf(text, groups, after, keywords, hasKeys) {
  if (groups.comment !== undefined) return "comment";
  const isKey = hasKeys && /^\s*[:=](?!\/)/.test(after);
  if (groups.string !== undefined) return isKey ? "name" : "string";
  if (groups.number !== undefined) return "number";
  if (isKey) return "name";
  if (LITERALS.has(text)) return "number";
  if (keywords.has(text)) return "keyword";
  return after.startsWith("(") || text.startsWith("@") ? "name" : null;
}

function* diff(code) {
  for (const line of code.split(/(?<=\n)/)) {
    if (line.startsWith("+")) yield span("added", line);
    else if (line.startsWith("-")) yield span("removed", line);
    else if (line.startsWith("@@")) yield span("comment", line);
    else yield line;
  }
}

function* markup(code) {
  let last = 0;
  for (const { 0: text, index, groups } of code.matchAll(/(?<comment><!--[^]*?(?:-->|$))|(?<tag><\/?[\w:-]+|\/?>)|(?<key>[\w:@-]+)(?==["'])|(?<string>(?<==)(?:"[^"]*"|'[^']*'))/g)) {
    yield code.slice(last, index);
    last = index + text.length;
    yield span(groups.comment ? "comment" : groups.tag ? "keyword" : groups.key ? "name" : "string", text);
  }
  yield code.slice(last);
}
