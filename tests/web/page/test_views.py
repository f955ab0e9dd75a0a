"""Every view of the page, to be looked at; by hand, because the pictures and times need a reader.

    WEFT_VIEWS=DIR make test-slow ARGS="tests/web/page/test_views.py"

writes a screenshot of each view into DIR: light, dark, and 360 pixels wide. With WEFT_AXE=axe.min.js (from
`npm pack axe-core`) axe checks each view, by the rules of WCAG 2.2 AA. A chat of 200 turns is scrolled and typed into.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import running
from tests.compute.encoders import make_model
from tests.doubles.whisper import sound, write_whisper
from tests.model.pooling_files import write_tokenizer
from tests.web.page.browser import NEEDS_CHROMIUM, Browser, browsing, open_page
from tests.web.page.test_browser import DONE, ask, tick

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.skipif("WEFT_VIEWS" not in os.environ, reason="WEFT_VIEWS=DIR makes pictures"),
    pytest.mark.filterwarnings("ignore"),
]
LOOKS = {"light": ("light", 1100, 900), "dark": ("dark", 1100, 900), "phone": ("light", 360, 740)}
ANSWER = r"""# A heading
Some **bold**, *italic*, `code`, and a [link](https://example.org/a).

1. first
   - inner *one*
2. second

> A quote of two lines

| name | value |
|:-----|------:|
| a    |     1 |
| c    | **2** |

```python
def add(a: int, b: int = 2) -> int:
    "Adds two numbers, with a line that is longer than a phone is wide."
    return a + b  # a comment
```

Euler: $e^{i\pi} + 1 = 0$, and

$$\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}$$
"""
LONG_TURN = ANSWER * 3
# Lets the model say something else than it would: what a large model might.
SAYS = """
const real = fetch;
const call = { index: 0, id: 'c', function: { name: 'look_up', arguments: '{"city":"Paris"}' } };
const choices = [{ delta: { reasoning: 'First, **think**.' } }, { delta: { content: arguments[0] } },
  { delta: { tool_calls: [call] }, finish_reason: 'stop' }];
const events = choices.map((one) => `data: ${JSON.stringify({ choices: [{ index: 0, ...one }] })}\\n\\n`);
window.fetch = (path, init) => path.includes('chat/completions')
  ? Promise.resolve(new Response(events.join('') + 'data: [DONE]\\n\\n')) : real(path, init);
"""


@contextmanager
def page_of(model: str, *flags: str) -> Iterator[Browser]:
    """The page of a server with this model."""
    with running(model, "--no-grpc", *flags) as server, browsing() as page:
        open_page(page, server.http)
        yield page


def look(page: Browser, name: str, prepare: Callable[[], Any] = lambda: None) -> None:
    """Writes the screenshots of a view, and checks it by axe."""
    directory = Path(os.environ["WEFT_VIEWS"])
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    for look, (scheme, width, height) in LOOKS.items():
        page.set_scheme(scheme)
        page.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        prepare()
        page.run("return new Promise((resolve) => setTimeout(resolve, 300))")  # to be drawn
        page.save_screenshot(directory / f"{name}-{look}.png")
        found += [f"{look}: {one}" for one in problems(page)]
    page.set_scheme("")
    page.devtools("Emulation.clearDeviceMetricsOverride")
    assert found == []
    assert page.complaints() == []


def problems(page: Browser) -> list[str]:
    """The violations that axe finds in what is shown."""
    if "WEFT_AXE" not in os.environ:
        return []
    if not page.run("return Boolean(window.axe)"):
        page.run(Path(os.environ["WEFT_AXE"]).read_text())
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    result = page.run(
        "return axe.run(document, { runOnly: { type: 'tag', values: arguments[0] } })", rules
    )
    return [
        f"{one['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for one in result["violations"]
        for node in one["nodes"]
    ]


def test_a_chat_is_looked_at():
    """Empty, with an answer of every kind, with tokens, with its settings, its list and the menu."""
    with page_of("embedded:tiny") as page:
        look(page, "empty")
        tick(page, "with-tokens")
        ask(page)
        look(
            page,
            "tokens",
            lambda: page.run("document.querySelectorAll('.tokens button')[5].click()"),
        )
        tick(page, "with-tokens")
        page.run(SAYS, ANSWER)
        ask(page, "Show me all that an answer may have, please.")
        look(page, "answer", lambda: page.run("document.querySelector('#scroll').scrollTop = 1e6"))
        look(
            page,
            "answer-top",
            lambda: page.run(
                "[...document.querySelectorAll('.assistant')].at(-1).scrollIntoView()"
            ),
        )
        page.run("document.querySelector('#to-settings').click()")
        look(page, "settings")
        page.run("document.querySelector('#settings').close()")
        page.run("document.querySelector('#model-menu').showPopover()")
        look(page, "menu")
        page.run("document.querySelector('#model-menu').hidePopover()")
        page.run(
            "document.querySelector('#to-chats').click(); document.querySelector('#chat-list summary').click()"
        )
        look(page, "chats")
        page.run("document.querySelector('#to-chats').click()")
        for view in ("engine", "models"):
            page.run("location.hash = arguments[0]", view)
            page.until(f"document.querySelector('#{view}').textContent.length > 200")
            look(page, view)
        page.run("location.href = 'docs'")
        page.until("document.querySelectorAll('.operation').length")
        look(page, "docs")  # fmt: skip


def test_models_that_do_not_chat_are_looked_at(tmp_path: Path):
    """Each with a result."""
    with page_of("embedded:tiny", "--runner", "pooling") as page:
        page.type("#embed-texts", "a cat on a mat\na dog in the rain\nthe moon")
        page.click("#embed button.primary")
        page.until("document.querySelector('#embed-status').textContent.startsWith('Done')")
        look(page, "embed")
    make_model("bert", "ForSequenceClassification", num_labels=1).save_pretrained(tmp_path / "bert")
    with page_of(str(write_tokenizer(tmp_path / "bert"))) as page:
        page.type("#rank-query", "the cat")
        page.type("#rank-documents", "the cat sat on a mat\nsun moon stars\nboat")
        page.click("#rank button.primary")
        page.until("document.querySelector('#rank-status').textContent.startsWith('Done')")
        look(page, "rank")
    (tmp_path / "tone.wav").write_bytes(sound(3.0))
    with page_of(str(write_whisper(tmp_path / "whisper"))) as page:
        page.until("!document.querySelector('#transcribe').hidden")
        page.run("document.querySelector('#transcribe-file').hidden = false")
        page.type("#transcribe-file", str(tmp_path / "tone.wav"))
        page.run("document.querySelector('#transcribe-file').hidden = true")
        page.until("document.querySelector('#transcribe-status').textContent.startsWith('Done')")
        look(page, "transcribe")


def test_several_models_are_looked_at():
    """The menu with their states."""
    with page_of("chat=embedded:tiny", "echo=embedded:echo") as page:
        page.run("document.querySelector('#model-menu').showPopover()")
        page.until("document.querySelectorAll('.model-row').length === 2")
        look(page, "several-models")


def test_a_long_chat_is_scrolled_and_typed_into():
    """200 turns with code and tables: opened, scrolled and typed into without a task above 100 ms."""
    turns = [
        {"id": str(i), "parent": str(i - 1) if i else None, "made": i, "role": "assistant" if i % 2 else "user",
         "text": "Tell me more.", "model": "m", "answers": [{"content": LONG_TURN, "finish": "stop"}]}
        for i in range(200)
    ]  # fmt: skip
    chats = [{"about": {"title": "Long", "leaf": "199"}, "turns": turns}]
    file = json.dumps({"format": "weft-chats", "version": 1, "chats": chats})
    with page_of("embedded:tiny") as page:
        page.run(
            "const text = arguments[0]; return Promise.all([import('/page/share.js'), import('/page/store.js')])"
            ".then(([share, store]) => { const [[about, turns]] = share.imported(text);"
            "sessionStorage.setItem('weft.chat', about.id); return store.save([about], turns); })",
            file,
        )
        page.devtools("Page.enable")
        page.devtools(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.tasks = []; new PerformanceObserver((list) => window.tasks.push("
            "...list.getEntries().map((one) => one.duration))).observe({ type: 'longtask', buffered: true })",
        )
        page.run("location.reload()")
        page.until(
            "document.querySelectorAll('#turns > li').length === 200"
            " && !document.querySelector('#turns').hasAttribute('aria-busy')"
        )
        opened = page.run("return window.tasks.splice(0)")
        page.run(
            "const box = document.querySelector('#scroll'); let top = box.scrollHeight;"
            "return new Promise((resolve) => { const step = () => { box.scrollTop = top -= 2000;"
            "if (top > 0) requestAnimationFrame(step); else resolve(); }; step(); })"
        )
        scrolled = page.run("return window.tasks.splice(0)")
        page.type("#message", "a message that is typed while all of this is there " * 3)
        typed = page.run("return window.tasks.splice(0)")
        page.run(SAYS, LONG_TURN)
        page.type("#message", "\n")
        page.until(DONE)
        answered = page.run("return window.tasks.splice(0)")
        print({"opened": opened, "scrolled": scrolled, "typed": typed, "answered": answered})
        assert [one for one in (*opened, *scrolled, *typed, *answered) if one > 100] == []
