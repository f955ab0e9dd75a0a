"""Chats that the browser keeps, in Chromium on real servers: found, branched, cut off and continued."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Server
from tests.web.page.browser import ESCAPE, NEEDS_CHROMIUM, Browser, browsing, open_page
from tests.web.page.test_browser import (
    DONE,
    QUESTION,
    ask,
    click_button,
    fill,
    last_answer,
)

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
NUM_TURNS = "document.querySelectorAll('#turns > li').length"
TITLES = "[...document.querySelectorAll('.chat-name')].map((one) => one.textContent)"


@pytest.fixture
def page(server: Server) -> Iterator[Browser]:
    """The page in a browser that keeps no chats yet; nothing may have been blocked or have failed in it."""
    with browsing() as window:
        open_page(window, server.http, "the-key")
        yield window
        assert window.complaints() == []


def open_more(page: Browser, place: int = 1) -> None:
    """Show what can be done with a chat of the list."""
    page.click(f"#chat-list li:nth-child({place}) summary")


def reload(page: Browser) -> None:
    page.run("location.reload()")
    page.until("document.querySelector('#model')?.value")


def test_the_message_has_the_focus(page: Browser):
    """As soon as the page is there, in a new chat, and after an answer."""
    page.until("document.activeElement.id === 'message'")
    ask(page)
    assert page.run("return document.activeElement.id") == "message"
    page.click("#clear")
    page.until("document.activeElement.id === 'message'")


def test_chats_outlive_the_page(page: Browser):
    """The last one is opened again, with its settings and its tokens; each has settings of its own."""
    fill(page, "system", "Be brief.")
    page.run("document.getElementById('with-tokens').click()")
    answer = ask(page)
    page.click("#clear")
    fill(page, "system", "Be long.")
    ask(page, "Hello!")
    reload(page)
    page.until(f"{NUM_TURNS} === 2")
    assert page.run(f"return {TITLES}") == ["Hello!", QUESTION]
    assert page.run("return document.querySelector('#system').value") == "Be long."
    page.click("#chat-list li:nth-child(2) .chat-name")
    page.until(f"document.querySelector('.answer')?.textContent === {answer!r}")
    assert page.run("return document.querySelector('#system').value") == "Be brief."
    assert page.run("return document.querySelectorAll('.tokens button').length") > 3
    ask(page, "Thank you!")
    assert page.run(f"return {NUM_TURNS}") == 4


def test_a_chat_is_found_renamed_and_deleted(page: Browser):
    """By its title and by what is said in it; a chat is deleted by the second click."""
    ask(page)
    page.click("#clear")
    ask(page, "Hello!")
    page.type("#find-chats", "pariS")
    page.until(f"{TITLES}.join() === {QUESTION!r}")
    open_more(page)
    click_button(page, "Rename")
    page.run("document.querySelector('#chat-list input').value = ''")
    page.type("#chat-list input", "Cities\n")
    page.until(f"{TITLES}.join() === 'Cities'")
    page.run(
        "const field = document.querySelector('#find-chats'); field.value = ''; field.dispatchEvent(new Event('input'))"
    )
    page.until(f"{TITLES}.length === 2")
    open_more(page, 2)
    click_button(page, "Delete")
    assert page.run(f"return {TITLES}.length") == 2
    click_button(page, "Delete it")
    page.until(f"{TITLES}.join() === 'Hello!'")
    reload(page)
    page.until(f"{TITLES}.join() === 'Hello!'")


def test_an_edit_is_a_branch_and_so_is_another_try(page: Browser):
    """The branch before is still there, with what followed it."""
    ask(page)
    ask(page, "Thank you!")
    page.run(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Edit').click()"
    )
    page.run("document.querySelector('#message').value = ''")
    assert "Rome" in ask(page, "What is the capital of Italy?")
    assert page.text(".branches span") == "2 of 2"
    page.click("[aria-label='The branch before']")
    page.until(f"{NUM_TURNS} === 4")
    assert "Paris" in page.text(".answer")
    page.click("[aria-label='The branch after']")
    page.until(f"{NUM_TURNS} === 2")
    click_button(page, "Retry")
    last_answer(page)
    page.until("[...document.querySelectorAll('.branches')].length === 2")


def test_chats_go_into_a_file_and_come_back(page: Browser, tmp_path: Path):
    """As JSON; an imported chat stands beside the one it was."""
    page.run(
        "URL.createObjectURL = (blob) => { window.exported = blob; return 'blob:none'; };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    ask(page)
    page.click("#export-chats")
    page.until("window.exported")
    text = page.run("return exported.text()")
    (chat,) = json.loads(text)["chats"]
    assert [turn["role"] for turn in chat["turns"]] == ["user", "assistant"]
    path = tmp_path / "chats.json"
    path.write_text(text)
    page.run("document.querySelector('#chats-file').hidden = false")  # for the driver
    page.type("#chats-file", str(path))
    page.until(f"{TITLES}.length === 2")
    page.click("#chat-list li:nth-child(2) .chat-name")
    page.until(f"{NUM_TURNS} === 2")
    assert "Paris" in page.text(".answer")
    path.write_text("{}")
    page.type("#chats-file", str(path))
    page.until("document.querySelector('#chats-note').textContent.includes('holds no chats')")


def test_an_answer_that_was_cut_off_goes_on_where_it_stopped(page: Browser):
    """A lost server is a sentence with a button; the text so far stays, also over a reload."""
    page.run(
        "const real = window.real = fetch; window.fetch = async (path, init) => {"
        "if (!path.includes('chat/completions')) return real(path, init);"
        "const whole = await (await real(path, init)).text();"
        "return new Response(whole.slice(0, whole.indexOf('capital')) + 'capital\"}}]}\\n\\n'); }"
    )
    page.type("#message", f"{QUESTION}\n")
    page.until("document.querySelector('.choice .error')")
    text = page.text(".choice .error")
    assert text.startswith("The connection to the server was lost. The answer so far is kept.")
    begun = page.text(".answer")
    assert begun.endswith("capital")
    reload(page)
    page.until(f"{NUM_TURNS} === 2")
    assert page.text(".answer") == begun
    click_button(page, "Try again")
    assert last_answer(page) == "The capital of France is Paris."
    assert page.run("return document.querySelectorAll('.choice .error').length") == 0
    assert page.run(f"return {NUM_TURNS}") == 2


def test_a_server_that_is_gone_is_a_sentence(page: Browser):
    """Trying again while it is away says the same, and works once it is there."""

    def set_offline(is_offline: bool) -> None:
        page.devtools(
            "Network.emulateNetworkConditions",
            offline=is_offline, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip

    page.devtools("Network.enable")
    set_offline(True)
    page.type("#message", f"{QUESTION}\n")
    page.until("document.querySelector('.choice .error')")
    assert page.text(".choice .error").startswith("The server cannot be reached.")
    click_button(page, "Try again")
    page.until("document.querySelector('[aria-busy=\"false\"] .choice .error')")
    set_offline(False)
    click_button(page, "Try again")
    assert "Paris" in last_answer(page)
    page.complaints()  # the browser logs the requests that failed


def test_an_answer_goes_on_while_another_chat_is_read(page: Browser):
    """It is whole when its chat is opened again, and the other chat waits for it."""
    fill(page, "max_tokens", "400")
    page.run(
        "const real = fetch; window.fetch = (path, init) => {"
        "if (init.body) init.body = init.body.replace('{', '{\"ignore_eos\":true,');"
        "return real(path, init); }"
    )
    page.type("#message", f"{QUESTION}\n")
    page.until("document.querySelector('.answer')?.textContent")
    page.click("#clear")
    page.until(f"{NUM_TURNS} === 0")
    page.click("#chat-list .chat-name")
    page.until(f"{NUM_TURNS} === 2")
    page.until(f"{DONE}")
    page.until("document.querySelector('.soft')")
    assert "limit of tokens" in page.text(".choice")


@pytest.mark.parametrize("height", [640, 740])
def test_the_composer_takes_a_fifth_of_a_phone(page: Browser, height: int):
    """At most, however long the message is; it covers nothing of the conversation."""
    page.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=360, height=height, deviceScaleFactor=1, mobile=True,
    )  # fmt: skip
    ask(page)
    page.run("document.querySelector('#message').value = 'line\\n'.repeat(50)")
    sizes = page.run(
        "const box = (id) => document.querySelector(id).getBoundingClientRect();"
        "return [box('#composer').height, box('#scroll').bottom, box('#composer').top]"
    )
    assert sizes[0] <= height / 5
    assert sizes[1] <= sizes[2]
    page.click("#to-chats")
    page.until("document.querySelector('#chat-list .chat-name').offsetParent")
    page.type("#find-chats", ESCAPE)
    page.until("!document.querySelector('#chat-list').offsetParent")
