// A block of code: its language, a button that copies it, and colours.

import { copy } from "./copy.js";
import { button, make } from "./dom.js";
import { highlighted } from "./highlight.js";

const MAX_COLOURED = 30_000; // characters; more would take too long while an answer grows

export function codeBlock(code, language) {
  const name = language.replace(/[^\w+#.-]/g, "").slice(0, 30);
  const nodes = code.length > MAX_COLOURED ? [code] : highlighted(code, name.toLowerCase());
  const copyButton = button("Copy", async () => {
    copyButton.textContent = (await copy(code)) ? "Copied" : "Copy";
  }, { "aria-label": "Copy the code" });
  return make("div", { className: "code-block" },
    make("div", { className: "code-head" }, make("span", {}, name || "code"), copyButton),
    make("pre", { tabIndex: 0, role: "region", "aria-label": name ? `Code, ${name}` : "Code" }, make("code", {}, nodes)));
}
