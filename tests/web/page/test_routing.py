"""The picker's page as its readers use it: in Chromium, on real pickers."""

import os
from pathlib import Path

import pytest

from tests.cli.test_epp import Epp, epp
from tests.cli.test_epp_up import up
from tests.web.page.browser import NEEDS_CHROMIUM, Browser
from tests.web.page.test_browser import IMAGES, ask

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
ENDPOINTS = ("--endpoint=127.0.0.1:1", "--endpoint=127.0.0.1:2,zone=north")
NUM_SHOWN = "document.querySelectorAll('#decisions details').length"


def open_routing(browser: Browser, picker: Epp) -> None:
    """The page as a new tab has it."""
    browser.open(f"http://127.0.0.1:{picker.metrics_port}/livez")
    browser.run("sessionStorage.clear()")
    browser.complaints()
    browser.open(f"http://127.0.0.1:{picker.metrics_port}/")


def test_decisions_come_with_their_scores(window: Browser):
    """The newest on top while they are made; one that is open stays open."""
    with epp(*ENDPOINTS) as picker:
        open_routing(window, picker)
        window.until("document.querySelectorAll('#workers .panel').length === 2")
        assert "zone=north" in window.text("#workers")
        window.until("document.querySelector('#none').offsetParent")
        destination = picker.route("first-request")
        window.until(f"{NUM_SHOWN} === 1")
        window.click("#decisions summary")
        window.until("document.querySelector('#decisions table')")
        rows = window.run(
            "return [...document.querySelectorAll('#decisions tbody tr')].map((r) => r.textContent)"
        )
        assert [row for row in rows if "picked" in row] == [
            row for row in rows if row.startswith(destination)
        ]
        heads = window.text("#decisions thead")
        assert "queue-scorer × 2" in heads
        picker.route("second-request")
        window.until(f"{NUM_SHOWN} === 2")
        assert "second-request" in window.text("#decisions details")
        assert window.run(
            "return [...document.querySelectorAll('#decisions details')].map((d) => d.open)"
        ) == [False, True]
        assert "secret" not in window.run("return document.body.textContent")
        loaded = window.run(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        assert {name.split("/")[2] for name in loaded} == {f"127.0.0.1:{picker.metrics_port}"}
        assert window.complaints() == []


def test_a_token_is_requested_where_the_picker_wants_one(window: Browser, tmp_path: Path):
    """The page comes without one; what it shows does not."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with epp(*ENDPOINTS, f"--metrics-token-file={file}") as picker:
        open_routing(window, picker)
        window.until("document.querySelector('#key-dialog').open")
        assert window.text("#key-title") == "Metrics token"
        assert window.run("return document.querySelectorAll('#workers .panel').length") == 0
        window.type("#key", "s3cret\n")
        window.until("document.querySelectorAll('#workers .panel').length === 2")


def test_weft_up_leads_from_its_page_to_the_picker(window: Browser):
    """With no set-up: a link in the page that the workers serve, to all of them and what was decided."""
    with up(model="embedded:tiny") as stack:
        window.open(f"http://{stack.address}/")
        window.until("!document.querySelector('#to-routing').hidden")
        assert "Paris" in ask(window)
        window.click("#to-routing")
        window.until("document.querySelectorAll('#workers .panel').length === 2")
        window.until(f"{NUM_SHOWN} === 1")  # and none of the page's own files
        assert "embedded:tiny" in window.text("#decisions summary")
        line = next(line for line in stack.lines if line.startswith("  routing"))
        assert line.split()[1] == window.run("return location.origin")
        if "WEFT_SCREENSHOTS" in os.environ:
            window.resize(1100, 940)
            window.click("#decisions summary")
            window.until("document.querySelector('#decisions table')")
            window.save_screenshot(IMAGES / "page-routing.png")
