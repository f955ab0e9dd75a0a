"""Pictures on the page, in Chromium: chosen, dropped and pasted, before the toy that sees."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.running import Server, running
from tests.web.page.browser import KEY, NEEDS_CHROMIUM, Browser, browsing, open_page

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
DONE = "document.querySelector('#status').textContent.startsWith('Done')"
SHOWN = "document.querySelectorAll('#attached canvas').length"
# Gives a file to the composer as an event of a reader's hand would.
GIVE = """
const [kind, text, name] = arguments;
const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], name, { type: "image/png" }));
const event = kind === "drop"
  ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
  : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
return !document.querySelector("#message").dispatchEvent(event);
"""


def plain(colour: str) -> bytes:
    """A picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (60, 40), colour).save(file, "PNG")
    return file.getvalue()


def give(browser: Browser, kind: str, data: bytes, name: str = "a.png") -> bool:
    """Drops or pastes a file; True if the page handled the event."""
    return bool(browser.run(GIVE, kind, base64.b64encode(data).decode(), name))


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    """The toy with pictures."""
    with running("embedded:tiny-vision", "--no-grpc", "--api-key", KEY) as server:
        yield server


@pytest.fixture
def page(seeing: Server) -> Iterator[Browser]:
    """The page with a key, in which nothing may have been blocked or have failed."""
    with browsing() as window:
        open_page(window, seeing.http, KEY)
        window.until("!document.querySelector('#attach').hidden")
        yield window
        assert window.complaints() == []


def test_pictures_are_chosen_dropped_and_pasted(page: Browser, tmp_path: Path):
    """Each is drawn beside the message and can be removed; sent, they are parts of the message before its text."""
    path = tmp_path / "red.png"
    path.write_bytes(plain("red"))
    page.run("document.querySelector('#pictures').hidden = false")  # for the driver
    page.type("#pictures", str(path))
    page.until(f"{SHOWN} === 1")
    assert give(page, "drop", plain("blue"))
    page.until(f"{SHOWN} === 2")
    assert give(page, "paste", plain("green"))
    page.until(f"{SHOWN} === 3")
    page.click("#attached li:nth-child(2) button")
    page.until(f"{SHOWN} === 2")
    page.run(
        "window.sent = []; const send = fetch; window.fetch = (path, init) => {"
        "sent.push(init.body); return send(path, init); }"
    )
    page.type("#message", "What colour is the background?\n")
    page.until(DONE)
    parts = page.run("return JSON.parse(sent.at(-1)).messages.at(-1).content")
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    urls = [part["image_url"]["url"].partition(",")[2] for part in parts[:2]]
    assert [base64.b64decode(url) for url in urls] == [plain("red"), plain("green")]
    assert page.run(f"return {SHOWN}") == 0
    assert page.run("return document.querySelectorAll('#turns canvas').length") == 2


def test_the_model_answers_about_the_picture(page: Browser):
    """An edited message keeps its pictures; a new chat forgets them."""
    assert give(page, "drop", plain("red"))
    page.until(f"{SHOWN} === 1")
    page.type("#message", "What colour is the background?\n")
    page.until(DONE)
    assert "Red" in page.text(".answer")
    page.run(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Edit').click()"
    )
    page.until(f"{SHOWN} === 1")
    page.click("#clear")
    assert page.run(f"return {SHOWN}") == 0


def test_what_is_no_picture_is_said_to_be_none(page: Browser):
    """The message stays, and nothing is attached."""
    assert give(page, "drop", b"no picture", "notes.txt")
    page.until("document.querySelector('#status').textContent.includes('is not a picture')")
    assert "notes.txt" in page.text("#status")
    assert page.run(f"return {SHOWN}") == 0


def test_a_model_that_reads_text_takes_no_pictures(server: Server, window: Browser):
    """The button is hidden, and a dropped file is refused in a sentence."""
    open_page(window, server.http, KEY)
    assert window.run("return document.querySelector('#attach').hidden")
    assert give(window, "drop", plain("red"))
    window.until(
        "document.querySelector('#status').textContent === 'This model takes no pictures and no sound.'"
    )
    assert window.complaints() == []
