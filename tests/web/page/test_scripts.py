"""The page's own renderers, run in Chromium: Markdown, code, mathematics, and chats in files."""

import json
from typing import Any

import pytest

from tests.web.page.browser import NEEDS_CHROMIUM, Browser

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def scripts(page_files: str, window: Browser) -> Browser:
    """A window with a page of ours, whose modules can be imported."""
    window.open(f"{page_files}/")
    return window


def call(browser: Browser, module: str, expression: str, *arguments: Any) -> Any:
    """Returns what an expression over a module `m` and the arguments `a` says."""
    script = (
        f"const a = [...arguments]; return import('/page/{module}').then((m) => ({expression}))"
    )
    return browser.run(script, *arguments)


def markup(browser: Browser, text: str) -> str:
    """Returns a text of Markdown as the HTML of its elements."""
    show = (
        "(() => { const made = new m.Markdown(); made.show(a[0]); return made.node.innerHTML; })()"
    )
    return str(call(browser, "markdown.js", show, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# One\n### Three", '<h3 class="level-1">One</h3><h5 class="level-3">Three</h5>'),
        ("a **b** *c* ~~d~~ `e*f*`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e*f*</code></p>"),
        ("***both*** **a *b* c**", "<p><em><strong>both</strong></em> <strong>a <em>b</em> c</strong></p>"),
        ("snake_case_name 2*3*4 a * b", "<p>snake_case_name 2<em>3</em>4 a * b</p>"),
        ("**open and *more", "<p>**open and *more</p>"),
        (r"\*no\* \# and \$5", "<p>*no* # and $5</p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("---", "<hr>"),
        ("- a\n- b\n  - c\n\nd", '<ul><li class="">a</li><li class="">b<ul><li class="">c</li></ul></li></ul><p>d</p>'),
        ("3. a\n4. b", '<ol start="3"><li class="">a</li><li class="">b</li></ol>'),
        ("- a\n\n  b\n- c", '<ul><li class="">a<p>b</p></li><li class="">c</li></ul>'),
        ("1. a\n```\nx\n```\n2. b", None),
        ("<b>x</b> &amp; <img src=x onerror=y>", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp; &lt;img src=x onerror=y&gt;</p>"),
    ],
)  # fmt: skip
def test_markdown_becomes_elements(scripts: Browser, text: str, expected: str | None):
    """Headings, emphasis, quotes, lists and paragraphs; HTML in the text stays text."""
    made = markup(scripts, text)
    assert expected is None or made == expected


@pytest.mark.parametrize(
    "target",
    ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd",
     "//elsewhere.example/x", "relative", "java\\script:x", "blob:x"],
)  # fmt: skip
def test_a_link_leads_to_the_web_or_nowhere(scripts: Browser, target: str):
    """Addresses of other schemes stay text, and pictures are never loaded."""
    made = markup(scripts, f"[x]({target}) ![y]({target}) <{target}>")
    assert "<a" not in made
    assert "<img" not in made


def test_links_open_in_a_window_of_their_own(scripts: Browser):
    """The other page learns nothing of this one; full stops and brackets after an address are no part of it."""
    made = markup(
        scripts,
        "[a](https://a.example/b_(c)) (see https://b.example/x_y). ![p](https://c.example/d.png)",
    )
    assert made.count('target="_blank" rel="noopener noreferrer nofollow"') == 3
    assert 'href="https://a.example/b_(c)"' in made
    assert ">https://b.example/x_y</a>)." in made
    assert ">Picture: p</a>" in made


def test_a_table_has_heads_and_sides(scripts: Browser):
    """A bar in code or behind a backslash divides nothing; missing cells are empty."""
    made = markup(scripts, "| a | b |\n|:-:|--:|\n| `x|y` | p\\|q |\n| 1 |\n\nafter")
    assert '<th scope="col" style="text-align: center;">a</th>' in made
    assert '<td style="text-align: center;"><code>x|y</code></td>' in made
    assert '<td style="text-align: right;">p|q</td>' in made
    assert '<td style="text-align: right;"></td>' in made
    assert made.endswith("<p>after</p>")


@pytest.mark.parametrize(
    ("language", "code", "kinds"),
    [
        ("python", 'def f(x): return "a#b"  # c', ["keyword", "name", "keyword", "string", "comment"]),
        ("js", "const a = `x${1}`; // y", ["keyword", "string", "comment"]),
        ("json", '{"a": [1, true, "b"]}', ["name", "number", "number", "string"]),
        ("sql", "SELECT x FROM t -- all", ["keyword", "keyword", "comment"]),
        ("diff", "+a\n-b\n c", ["added", "removed"]),
        ("html", '<a href="x">y</a>', ["keyword", "name", "string", "keyword", "keyword", "keyword"]),
        ("unheard-of", "if x", []),
    ],
)  # fmt: skip
def test_code_has_colours_and_loses_nothing(
    scripts: Browser, language: str, code: str, kinds: list[str]
):
    """Words by kind; the text stays what it was, and a language that is not known stays plain."""
    expression = (
        "m.highlighted(a[0], a[1]).map((one) => typeof one === 'string' ? [null, one] "
        ": [one.className.slice(3), one.textContent])"
    )
    parts = call(scripts, "highlight.js", expression, code, language)
    assert "".join(text for _, text in parts) == code
    assert [kind for kind, _ in parts if kind] == kinds


def test_a_block_of_code_is_copied_as_it_is(scripts: Browser):
    """Its button takes the code alone; a fence that is still open holds what has come."""
    script = (
        "(() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };"
        "const made = new m.Markdown(); made.show(a[0]); made.node.querySelector('button').click();"
        "return [window.copied, made.node.querySelector('.code-head span').textContent]; })()"
    )
    assert call(scripts, "markdown.js", script, "````py\na\n```\n  b\n````") == [
        "a\n```\n  b",
        "py",
    ]
    assert call(scripts, "markdown.js", script, "```\nhalf") == ["half", "code"]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\sqrt[3]{x}", "<mroot><mi>x</mi><mn>3</mn></mroot>"),
        (r"\mathbb{R}", "<mi>ℝ</mi>"),
        (r"\alpha \leq 1", '<mi>α</mi><mo stretchy="false">≤</mo><mn>1</mn>'),
        (r"\text{if } x", "<mtext>if&nbsp;</mtext><mi>x</mi>"),
        (r"\begin{matrix} a & b \\ c & d \end{matrix}", "<mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr>"),
        (r"\sum_{i}^{n}", "∑</mo><mi>i</mi><mi>n</mi></munderover>"),
        (r"\left( x \right]", '<mo fence="true" stretchy="true">(</mo>'),
    ],
)  # fmt: skip
def test_mathematics_becomes_mathml(scripts: Browser, formula: str, expected: str):
    """LaTeX's usual words, which the browser draws itself."""
    assert expected in call(scripts, "math.js", "m.mathNode(a[0], false).outerHTML", formula)


@pytest.mark.parametrize(
    "formula", [r"\frac{a", r"\begin{what} x \end{what}", "}", "{" * 200, r"\left("]
)
def test_a_formula_that_cannot_be_read_stays_as_written(scripts: Browser, formula: str):
    """As code, and never as an error."""
    assert call(scripts, "math.js", "m.mathNode(a[0], true).tagName", formula) == "CODE"


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("costs $5 and $6, or $7", []),
        ("$x$ and $$y$$ and \\(z\\)", ["x", "y", "z"]),
        ("$$\nx\n$$", ["x"]),
        ("\\[ x \\]", ["x"]),
        ("`$x$` and `\\(y\\)`", []),
        ("$$ never closed", []),
    ],
)
def test_money_and_code_are_no_formulas(scripts: Browser, text: str, formulas: list[str]):
    """Dollars enclose a formula only without spaces inside, and before no digit."""
    show = (
        "(() => { const made = new m.Markdown(); made.show(a[0]);"
        "return [...made.node.querySelectorAll('math')].map((one) => one.getAttribute('alttext')); })()"
    )
    assert call(scripts, "markdown.js", show, text) == formulas


def test_what_is_there_stays_while_an_answer_grows(scripts: Browser):
    """Only the last blocks are made anew; the end is what the whole text gives at once."""
    text = "# A\n\nfirst\n\n- a\n- b\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nlast *words*"
    script = (
        "(() => { const made = new m.Markdown(); let first; for (let i = 1; i <= a[0].length; i += 1) {"
        "made.show(a[0].slice(0, i)); if (i === 8) first = made.node.firstChild; }"
        "return [made.node.innerHTML, first === made.node.firstChild]; })()"
    )
    grown, is_kept = call(scripts, "markdown.js", script, text)
    assert grown == markup(scripts, text)
    assert is_kept


@pytest.mark.parametrize(
    "text",
    ["*a " * 3000, "[" * 5000, "`a``b" * 2000, "> " * 3000, "$a" * 3000, "- " * 3000, "**_" * 3000,
     "|a" * 2000 + "\n|-", "![a](" * 2000, "\\(" * 3000, "<" * 5000, "1. a\n" * 1000, "~~~" * 1000],
)  # fmt: skip
def test_odd_text_is_read_in_the_end(scripts: Browser, text: str):
    """Whatever a model writes, nothing of it is lost but marks, and no page hangs."""
    assert len(markup(scripts, text)) > 0


CHAT = {
    "about": {"title": "One", "leaf": "b", "settings": {"system": "Be brief."}},
    "turns": [
        {"id": "a", "parent": None, "made": 1, "role": "user", "text": "Hello", "pictures": [], "sounds": []},
        {"id": "b", "parent": "a", "made": 2, "role": "assistant", "model": "m", "answers": [{"content": "Hi"}]},
    ],
}  # fmt: skip


def imported(browser: Browser, file: object) -> Any:
    text = file if isinstance(file, str) else json.dumps(file)
    return call(
        browser,
        "share.js",
        "(() => { try { return m.imported(a[0]); } catch (e) { return e.message; } })()",
        text,
    )


def test_chats_come_out_of_a_file_as_they_went_in(scripts: Browser):
    """With new ids, so that no chat is replaced; what the file does not say is empty."""
    text = call(scripts, "share.js", "m.exported(a)", CHAT)
    ((about, turns),) = imported(scripts, text)
    assert (about["title"], about["settings"]) == ("One", CHAT["about"]["settings"])
    assert about["leaf"] == turns[1]["id"] != "b"
    assert turns[1]["parent"] == turns[0]["id"] != "a"
    assert {turn["chat"] for turn in turns} == {about["id"]}
    assert turns[1]["answers"][0]["content"] == "Hi"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("{", "The file is not JSON."),
        ({"chats": []}, 'The file holds no chats: its "format" must be "weft-chats".'),
        ({"format": "weft-chats", "version": 2, "chats": []}, 'The file\'s "version" must be 1.'),
        ({"format": "weft-chats", "version": 1, "chats": [{}]}, "Chat 1 of the file has no list of turns."),
        ({"format": "weft-chats", "version": 1, "chats": [{"turns": [{"id": "a", "role": "x"}]}]},
         'Turn 1 of chat 1 must have the "role" user, assistant or tool.'),
        ({"format": "weft-chats", "version": 1, "chats": [{"turns": [{"id": "a", "parent": "a", "role": "user"}]}]},
         "Chat 1 of the file is damaged."),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_chats_is_refused(scripts: Browser, file: object, reason: str):
    """By a sentence that says what is wrong with it."""
    assert imported(scripts, file) == reason
