"""Chromium, driven over the WebDriver protocol by its own driver; both come from the system's packages."""

import base64
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.ports import free_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
NEEDS_CHROMIUM = pytest.mark.skipif(
    not (CHROMIUM and CHROMEDRIVER),
    reason="needs Chromium and its driver: apt install chromium chromium-driver",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that WebDriver gives a reference to one
KEY = "the-key"  # of the server that most tests here share
ENTER, ESCAPE = "\ue007", "\ue00c"


class Browser:
    """One window."""

    def __init__(self, http: httpx2.Client, session: str) -> None:
        self._http = http
        self._session = session

    def command(self, method: str, path: str, body: Any = None) -> Any:
        """What the driver answers to a command for this window."""
        value = self._answer(method, path, body)
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def _answer(self, method: str, path: str, body: Any = None) -> Any:
        content = None if method == "GET" else (body or {})
        answer = self._http.request(method, f"/session/{self._session}{path}", json=content)
        return answer.json()["value"]

    def open(self, url: str) -> None:
        """Load a page."""
        self.command("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page."""
        return self.command("POST", "/execute/sync", {"script": script, "args": arguments})

    def until(self, script: str) -> Any:
        """What an expression says in the page, as soon as it says anything."""
        return until(lambda: self.run(f"return {script}"), script)

    def click(self, selector: str) -> None:
        """Click what a selector finds, as soon as it is there and shown."""
        self.until(f"document.querySelector({selector!r})?.offsetParent")
        self.command("POST", f"/element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Type into what a selector finds, as soon as it takes any."""
        path = f"/element/{self._find(selector)}/value"

        def is_typed() -> bool:
            value = self._answer("POST", path, {"text": text})
            if value is not None and value["error"] != "element not interactable":
                raise AssertionError(value)
            return value is None  # else the window is not drawn yet, and nothing was typed

        until(is_typed, f"{selector} to type into")

    def text(self, selector: str) -> str:
        """What is to be read in the first that a selector finds."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def resize(self, width: int, height: int) -> None:
        """The window's size."""
        self.command("POST", "/window/rect", {"width": width, "height": height})

    def set_scheme(self, scheme: str) -> None:
        """The colours that the page's reader prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def devtools(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def complaints(self) -> list[str]:
        """What the console has said since the last call that is worse than a hint.

        That addresses which are no pages have no icon is not counted.
        """
        entries = self.command("POST", "/se/log", {"type": "browser"})
        messages = [entry["message"] for entry in entries if entry["level"] != "INFO"]
        return [message for message in messages if "/favicon.ico" not in message]

    def save_screenshot(self, path: Path) -> None:
        """What is seen of the page."""
        path.write_bytes(base64.b64decode(self.command("GET", "/screenshot")))

    def _find(self, selector: str) -> str:
        found = self.command("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])


def open_page(browser: Browser, url: str, key: str = "") -> None:
    """The page as a new tab has it, but for the key."""
    browser.open(f"{url}/livez")
    browser.run("sessionStorage.clear(); sessionStorage.setItem('weft.key', arguments[0])", key)
    browser.complaints()
    browser.open(f"{url}/")
    browser.until("document.querySelector('#model').value")


def until(condition: Callable[[], Any], what: str) -> Any:
    """What `condition` returns, as soon as that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)
    return value


@contextmanager
def browsing() -> Iterator[Browser]:
    """A window of a browser with a profile of its own, which has seen nothing yet."""
    assert CHROMEDRIVER is not None
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        driver = subprocess.Popen(
            [CHROMEDRIVER, f"--port={port}", "--log-level=SEVERE"],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HOME": home},
        )
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
                until(lambda: _is_up(http), "chromedriver")
                answer = http.post("/session", json=_capabilities(home)).json()["value"]
                assert "sessionId" in answer, answer
                browser = Browser(http, answer["sessionId"])
                try:
                    yield browser
                finally:
                    browser.command("DELETE", "")
        finally:
            driver.terminate()
            driver.wait(PATIENCE_S)


def _is_up(http: httpx2.Client) -> bool:
    try:
        return bool(http.get("/status").json()["value"]["ready"])
    except httpx2.TransportError:
        return False


def _capabilities(home: str) -> dict[str, Any]:
    args = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    args += [f"--user-data-dir={home}/profile", "--window-size=1100,900", "--hide-scrollbars"]
    if os.geteuid() == 0:
        args.append("--no-sandbox")  # which it cannot have as root
    chrome = {"binary": CHROMIUM, "args": args}
    first = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
    return {"capabilities": {"alwaysMatch": {"browserName": "chrome", **first}}}
