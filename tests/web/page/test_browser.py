"""The page as its readers use it: in Chromium, on real servers.

With WEFT_SCREENSHOTS=1 the pictures of docs/page.md are made anew.
"""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, clean_environment, running
from tests.web.http.serving import serving
from tests.web.page.browser import ESCAPE, KEY, NEEDS_CHROMIUM, Browser, browsing, open_page

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
QUESTION = "What is the capital of France?"
DONE = "document.querySelector('#status').textContent.startsWith('Done')"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "size": {"type": "integer"}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


def ask(browser: Browser, text: str = QUESTION) -> str:
    """The last answer to a message, once it is whole."""
    browser.type("#message", f"{text}\n")
    return last_answer(browser)


def last_answer(browser: Browser) -> str:
    browser.until(DONE)
    return str(browser.run("return [...document.querySelectorAll('.answer')].at(-1).textContent"))


def click_button(browser: Browser, label: str) -> None:
    """Press the last button with this label."""
    browser.until(
        f"[...document.querySelectorAll('button')].some((b) => b.textContent === {label!r})"
    )
    browser.run(
        "[...document.querySelectorAll('button')].findLast((b) => b.textContent === arguments[0]).click()",
        label,
    )


def tick(browser: Browser, field: str) -> None:
    """Tick a box of the settings."""
    browser.run("document.getElementById(arguments[0]).click()", field)


def fill(browser: Browser, field: str, value: object) -> None:
    """Put text into a field of the settings, as if it had been pasted."""
    browser.run(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('change'))",
        field,
        value if isinstance(value, str) else json.dumps(value),
    )


def test_a_key_is_requested_and_stays_in_the_tab(server: Server, window: Browser):
    """One that is wrong is said to be; the one that is right is in this tab's storage and nowhere else."""
    window.open(f"{server.http}/")
    window.run("sessionStorage.clear()")
    window.open(f"{server.http}/")
    window.until("document.querySelector('#key-dialog').open")
    window.type("#key", "wrong\n")
    window.until("document.querySelector('#key-reason').textContent.includes('does not take')")
    window.until("document.querySelector('#key-dialog').open")
    window.run("document.querySelector('#key').value = ''")
    window.type("#key", f"{KEY}\n")
    window.until("document.querySelector('#model').value")
    places = (
        "return [Object.entries({...sessionStorage}).filter(([name]) => name !== 'weft.chat'),"
        " localStorage.length, document.cookie]"
    )
    assert window.run(places) == [[["weft.key", KEY]], 0, ""]


def test_an_answer_is_timed_and_retried(page: Browser):
    """Retrying takes the answer's place."""
    assert "Paris" in ask(page)
    assert re.match(
        r"Done: \d+ tokens, first after [\d,]+ ms, .*in the prompt", page.text("#status")
    )
    click_button(page, "Retry")
    page.until("document.querySelector('[aria-busy=\"false\"]')")
    assert "Paris" in last_answer(page)
    assert page.run("return document.querySelectorAll('#turns > li').length") == 2


def test_a_message_is_edited_and_what_followed_it_goes(page: Browser):
    """Escape leaves it; sending takes the place of it and of all after it."""
    ask(page)
    ask(page, "Thank you!")
    page.run(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Edit').click()"
    )
    assert page.run("return document.querySelector('#message').value") == QUESTION
    page.type("#message", ESCAPE)
    assert page.run("return document.querySelectorAll('#turns > li').length") == 4
    page.run(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Edit').click()"
    )
    page.run("document.querySelector('#message').value = ''")
    assert "Rome" in ask(page, "What is the capital of Italy?")
    assert page.run("return document.querySelectorAll('#turns > li').length") == 2
    assert "Italy" in page.text("#turns > li")


def test_an_answer_grows_until_it_is_stopped():
    """What had come stays, and the server is rid of the request."""
    with running("embedded:echo", "--no-grpc") as echo, browsing() as browser:
        open_page(browser, echo.http)
        fill(browser, "max_tokens", "2000")
        browser.run(
            "window.states = new Set(); new MutationObserver(() => states.add(document.querySelector('.answer')"
            "?.textContent)).observe(document.querySelector('#turns'), {subtree: true, childList: true, "
            "characterData: true})"
        )
        browser.type("#message", "many words and more of them " * 30 + "\n")
        browser.until("states.size > 3")
        browser.type("body", ESCAPE)
        browser.until("document.querySelector('#status').textContent === 'Stopped.'")
        assert browser.text(".answer")
        aborted = 'vllm:request_success_total{engine="0",finished_reason="abort"'
        browser.until("!document.querySelector('#send').hidden")
        metrics = httpx2.get(f"{echo.http}/metrics", timeout=PATIENCE_S).text
        line = next(line for line in metrics.splitlines() if line.startswith(aborted))
        assert float(line.rpartition(" ")[2]) == 1


def test_an_answer_goes_on_from_another_token(page: Browser):
    """Each token has its probability and what else might have stood there; one of those is taken."""
    tick(page, "with-tokens")
    assert ask(page) == "The capital of France is Paris."
    page.click(".tokens button:nth-child(6)")
    rows = page.run(
        "return [...document.querySelectorAll('.choice tbody tr')].map((r) => r.textContent)"
    )
    assert len(rows) == 5
    assert re.match(r" Paris9\d\.\d %", rows[0])
    page.click(".choice tbody tr:nth-child(2) button")
    page.until("document.querySelector('[aria-busy=\"false\"]')")
    other = rows[1].split("<")[0]
    assert last_answer(page).startswith(f"The capital of France is{other}")
    kept = page.run("return document.querySelector('.tokens button:nth-child(6)').textContent")
    assert kept == other


def test_two_answers_stand_side_by_side(page: Browser):
    """The chosen one is what the conversation goes on with."""
    tick(page, "two-answers")
    ask(page)
    first, second = page.run(
        "return [...document.querySelectorAll('.answer')].map((a) => a.textContent)"
    )
    assert "Paris" in first
    assert "Paris" in second
    page.click(".choice:nth-child(2) input[type=radio]")
    ask(page, "Thank you!")
    assert page.run("return document.querySelectorAll('.choices').length") == 2


def test_an_answer_is_checked_against_its_schema(page: Browser):
    """What was to keep to a schema is looked through again; text that is no schema is never sent."""
    fill(page, "schema", "{")
    page.type("#message", "hello\n")
    page.until("document.querySelector('#schema-error').textContent")
    assert page.run("return document.querySelectorAll('#turns > li').length") == 0
    fill(page, "schema", SCHEMA)
    page.click("#close-settings")
    page.type("#message", "\n")
    assert json.loads(last_answer(page)).keys() == {"city", "size"}
    page.until("document.querySelector('.good')")
    assert page.text(".good") == "Keeps to the schema."


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ({"city": "Oslo", "size": 1}, SCHEMA, 'the answer.city is none of ["Paris","Rome"]'),
        ({"city": "Rome", "size": 1.5}, SCHEMA, "the answer.size is not of type integer"),
        ({"city": "Rome"}, SCHEMA, 'the answer has no "size"'),
        (
            {"city": "Rome", "size": 1, "x": 1},
            SCHEMA,
            'the answer has "x", which the schema does not',
        ),
        ([1, 2, "3"], {"items": {"type": "number"}}, "the answer[2] is not of type number"),
        ("abc", {"maxLength": 2}, "the answer is longer than 2"),
        (3, {"exclusiveMaximum": 3}, "the answer is not below 3"),
        (None, {"type": ["string", "object"]}, "the answer is not of type string or object"),
        ({"city": "Rome", "size": 1}, SCHEMA, None),
        (3, {"oneOf": [False]}, None),
    ],
)
def test_the_checker_finds_what_is_wrong(
    page: Browser, value: object, schema: object, problem: str
):
    """By the plain keywords; others are named as unchecked, not passed over in silence."""
    script = (
        "const [value, schema] = arguments; return import('/page/schema.js')"
        ".then((module) => module.check(value, schema))"
    )
    found = page.run(script, value, schema)
    assert found["problems"] == ([] if problem is None else [problem])
    assert found["unchecked"] == (["oneOf"] if schema == {"oneOf": [False]} else [])


def test_tool_calls_are_shown_and_answered(page: Browser):
    """A call that the model makes stands there with its arguments, and takes a result."""
    fill(page, "tools", [TOOL])
    page.run(
        "const real = fetch; window.fetch = (path, init) => { if (init.body) { const body = JSON.parse("
        "init.body); if (body.tools && body.messages.at(-1).role === 'user') body.tool_choice = 'required';"
        "init = {...init, body: JSON.stringify(body)}; window.sent = body; } return real(path, init); }"
    )
    fill(page, "max_tokens", "60")
    page.type("#message", "Look!\n")
    page.until(DONE)
    assert "Calls look" in page.text(".call")
    page.type(".call input", "nothing there")
    click_button(page, "Send results")
    page.until("document.querySelectorAll('.assistant[aria-busy=\"false\"]').length === 2")
    call, result = page.run("return sent.messages.slice(-2)")
    assert call["tool_calls"][0]["function"]["name"] == "look"
    assert result == {
        "role": "tool",
        "tool_call_id": call["tool_calls"][0]["id"],
        "content": "nothing there",
    }


def test_a_request_is_copied_and_runs_elsewhere(page: Browser):
    """As a command and as a program, which say what the page showed; the key is in neither."""
    fill(page, "system", 'It\'s "quoted" \\ here.')
    fill(page, "top_k", "5")
    answer = ask(page)
    page.run(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }"
    )
    environment = clean_environment(WEFT_API_KEY=KEY)
    click_button(page, "Copy as Python")
    program = str(page.until("window.copied"))
    run = [sys.executable, "-c", program]
    assert KEY not in program
    assert said_by(run, environment) == f"{answer}\n"
    click_button(page, "Copy as curl")
    command = str(page.until("window.copied.startsWith('curl') && window.copied"))
    assert KEY not in command
    assert shlex.split(command)[0] == "curl"
    assert '"content":' in said_by(["bash", "-c", command], environment)


def said_by(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout


def test_the_models_and_what_the_engine_runs_with_are_listed(page: Browser):
    """Every name, and the engine's settings by section."""
    page.click("#to-models")
    page.until("document.querySelector('#server-info details')")
    assert "embedded:tiny" in page.text("#cards")
    assert "2,048 tokens" in page.text("#cards")
    assert "None are loaded." in page.text("#adapters")


@pytest.mark.parametrize("view", ["chat", "engine", "models"])
def test_everything_that_is_operated_has_a_name(page: Browser, view: str):
    """For who hears the page: no button, field, link or picture is nameless."""
    tick(page, "with-tokens")
    ask(page)
    page.click(".tokens button")
    page.run("document.querySelector('#settings').show()")
    page.run("location.hash = arguments[0]", view)
    page.until(f"!document.querySelector('#{view}').hidden")
    operated = {
        "button",
        "link",
        "textbox",
        "checkbox",
        "spinbutton",
        "combobox",
        "image",
        "meter",
        "radio",
    }
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in page.devtools("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"]
    ]
    named = [(role, name) for role, name in nodes if role in operated]
    assert len(named) > 4
    assert [role for role, name in named if not name.strip()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(page: Browser, scheme: str):
    """By 4.5 to 1, as WCAG 2 has it for text of usual size, in every view."""
    try:
        page.set_scheme(scheme)
        tick(page, "with-tokens")
        ask(page)
        page.click(".tokens button")
        page.run("document.querySelector('#settings').show()")
        for view in ("chat", "engine", "models"):
            page.run("location.hash = arguments[0]", view)
            page.until(f"!document.querySelector('#{view}').hidden")
            page.until(f"document.querySelector('#{view}').textContent.length > 100")
            assert page.run(FAINT) == []
    finally:
        page.set_scheme("")


# Texts that are seen, and stand out by less.
FAINT = """
const read = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const back = (one) => !one ? [255, 255, 255, 1] :
  over(read(getComputedStyle(one).backgroundColor), back(one.parentElement));
const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
  const part = rgb[i] / 255;
  return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
}, 0);
return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !one.closest('.unseen, .skip')
  && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && !one.disabled).flatMap((one) => {
    const behind = back(one), ink = over(read(getComputedStyle(one).color), behind);
    const [high, low] = [light(ink), light(behind)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05) < 4.5 ? [`${one.tagName} ${one.textContent.slice(0, 40)}`] : [];
});
"""


@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_wider_than_the_window(page: Browser, width: int):
    """On a phone as on a desk: the page is never moved sideways."""
    try:
        page.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        tick(page, "with-tokens")
        tick(page, "two-answers")
        ask(page, "x" * 200)
        page.click(".tokens button")
        for view in ("chat", "engine", "models"):
            page.run("location.hash = arguments[0]", view)
            page.until(f"!document.querySelector('#{view}').hidden")
            assert page.run("return document.documentElement.scrollWidth") <= width
    finally:
        page.devtools("Emulation.clearDeviceMetricsOverride")


async def test_a_start_is_shown_until_it_is_over(window: Browser):
    """The page is there before the model is, and says how far that has come."""
    async with serving(is_open=False, has_page=True) as site:

        def look() -> str:
            window.open(f"{site.url}/")
            window.until("!document.querySelector('#startup').hidden")
            return window.text("#startup-phase")

        shown = await asyncio.to_thread(look)
        await asyncio.to_thread(window.open, "about:blank")
    assert shown == "The server is starting: starting"


def test_without_scripts_it_says_so(server: Server):
    """In the place of what is missing."""
    with browsing() as browser:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(f"{server.http}/")
        assert browser.run("return document.querySelector('noscript p').offsetHeight") > 0


@pytest.mark.skipif(
    "WEFT_SCREENSHOTS" not in os.environ, reason="WEFT_SCREENSHOTS=1 makes pictures"
)
def test_pictures_are_made(server: Server, page: Browser):
    """Those of docs/page.md: an answer with its tokens, and an engine at work."""
    IMAGES.mkdir(exist_ok=True)
    page.resize(1100, 940)
    tick(page, "with-tokens")
    fill(page, "temperature", "1.6")
    fill(page, "seed", "4")
    ask(page, "What can you do?")
    page.run(
        "const likely = (b) => b.style.getPropertyValue('--p');"
        "[...document.querySelectorAll('.tokens button')].sort((a, b) => likely(a) - likely(b))[0].click()"
    )
    page.save_screenshot(IMAGES / "page-chat.png")
    page.click("#to-engine")
    page.set_scheme("dark")
    bodies = [
        {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 100 + 37 * number % 900,
            "ignore_eos": True,
        }
        for number in range(120)
    ]
    url, headers = f"{server.http}/v1/chat/completions", {"x-api-key": KEY}
    with ThreadPoolExecutor(14) as pool:
        answers = pool.map(
            lambda body: httpx2.post(url, json=body, timeout=PATIENCE_S, headers=headers), bodies
        )
        page.until(
            "document.querySelectorAll('polyline')[1].getAttribute('points')?.split(' ').length > 7"
        )
        page.run("document.querySelector('.whole').scrollIntoView()")
        page.save_screenshot(IMAGES / "page-engine.png")
    assert {answer.status_code for answer in answers} == {200}
    page.set_scheme("")
