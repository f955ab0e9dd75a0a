"""The first minute of a new user, in a real terminal (tmux): from a fresh clone to an answer and the end.

What the terminal shows is in docs/first-minute.md; `WEFT_RECORD=1` in front of the tests writes it anew.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.running import clean_environment
from tests.ports import free_port
from tests.tools.test_set_up import as_wheel, core
from tools.set_up import ROOT, wheel_name

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
PAGE = ROOT / "docs" / "first-minute.md"
PATIENCE_S = 600.0  # packages are installed
WIDTH = 100
# What differs from machine to machine, and from run to run.
MASKS = (
    (r"weft_serve-[\d.]+-0\w+-\S+\.whl", "weft_serve-….whl"),
    (r"\d\d:\d\d:\d\d (?=INFO)", "hh:mm:ss "),
    (r"\b[\d.]+ s\b", "… s"),
    (r"of [\d.]+ [GM]iB\s+free", "of … GiB free"),
    (r"installing \d+ packages", "installing … packages"),
    (r"\^C", "^C\n"),
    (r"(?m)^\[\d/\d\] pip, .*\n", ""),  # it may be new enough
    (r"(?m)^\[\d/\d\] ", "[…] "),
    (r"(?m)^  compute .*\n( {10}.*\n)*", "  compute …\n"),
    (r"(?m)^  warn .*\n( {10}.*\n)*", ""),
)


class Terminal:
    """A window of tmux with a plain shell in `directory`."""

    def __init__(self, directory: Path, environment: dict[str, str], name: str = "first") -> None:
        self._socket = f"weft-{os.getpid()}-{name}"
        self._directory = directory
        self._environment = environment
        shell = ["env", "PS1=$ ", "bash", "--norc", "--noprofile"]
        size = ["-x", str(WIDTH), "-y", "50"]
        self.run("new-session", "-d", *size, "-c", str(directory), *shell)

    def another(self) -> "Terminal":
        """Beside this one, in the same directory."""
        return Terminal(self._directory, self._environment, "other")

    def close(self) -> None:
        """End it, and what runs in it."""
        self.run("kill-server")

    def run(self, *words: str) -> str:
        """A command of tmux."""
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=self._environment
        ).stdout

    def type(self, text: str) -> None:
        """As at a keyboard, with Enter, once the shell waits for it."""
        self.until(lambda text: text == "$\n")
        self.run("send-keys", "-l", text)
        self.run("send-keys", "Enter")

    def text(self) -> str:
        """All that was shown, scrolled away or not; rows that the terminal has broken are whole."""
        return self.run("capture-pane", "-p", "-J", "-S", "-").rstrip() + "\n"

    def until(self, is_there: Callable[[str], bool]) -> list[str]:
        """What was shown, over and over, until that is so."""
        shown: list[str] = []
        end = time.monotonic() + PATIENCE_S
        while not (shown and is_there(shown[-1])):
            assert time.monotonic() < end, shown[-1]
            shown.append(self.text())
            time.sleep(0.1)
        return shown


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Fresh, with a wheel beside it so that nothing is compiled."""
    path = tmp_path / "weft"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(path)], check=True)
    (path / "dist").mkdir()
    as_wheel(path / "dist" / wheel_name(), core().read_bytes())
    return path


@pytest.fixture
def ports() -> tuple[str, str]:
    return str(free_port()), str(free_port())


@pytest.fixture
def terminal(clone: Path, ports: tuple[str, str]) -> Iterator[Terminal]:
    http, grpc = ports
    settings = {
        "WEFT_DISABLE_LOG_STATS": "true",
        "WEFT_PORT": http,
        "WEFT_GRPC_PORT": grpc,
        "WEFT_ADDRESS": f"127.0.0.1:{grpc}",
    }
    terminal = Terminal(clone, clean_environment(PYTHON=sys.executable, **settings))
    try:
        yield terminal
    finally:
        terminal.close()


def masked(text: str, ports: tuple[str, str]) -> str:
    """The same on every machine."""
    http, grpc = ports
    text = text.replace(f" --address 127.0.0.1:{grpc}", "").replace(f":{grpc}", ":50051")
    text = text.replace(f" --url http://127.0.0.1:{http}", "").replace(f":{http}", ":8000")
    text = text.replace(f" (port {grpc})", "")
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return text


def as_page(page: str, recordings: list[str]) -> str:
    """The page with these in its blocks, in order."""
    blocks = iter(recordings)
    return re.sub(r"(?s)```text\n.*?```", lambda _: f"```text\n{next(blocks)}```", page)


def test_the_first_minute_is_as_the_page_shows_it(
    terminal: Terminal, ports: tuple[str, str], clone: Path
):
    """Nothing to read but the terminal: what happens, what is served, what to try, how to end it."""
    terminal.type("make serve")
    shown = terminal.until(lambda text: "Ctrl-C ends it" in text or text.endswith("\n$\n"))
    assert "Ctrl-C ends it" in shown[-1], shown[-1]
    other = terminal.another()
    try:
        other.type('.venv/bin/weft chat --temperature 0 "What can you do?"')
        answer = other.until(lambda text: text.endswith("\n$\n"))[-1]
    finally:
        other.close()
    terminal.run("send-keys", "C-c")
    ended = terminal.until(lambda text: text.endswith("\n$\n"))[-1]
    steps = re.compile(
        r"^\[\d/\d\] Weft, \S.*, \d+ s$|^  (importing|reading|loading)", re.MULTILINE
    )
    assert any(steps.search(text) for text in shown)  # while it was at it
    page = PAGE.read_text(encoding="utf-8")
    recorded = as_page(
        page, [masked(text.removesuffix("$\n").rstrip() + "\n", ports) for text in (ended, answer)]
    )
    if os.environ.get("WEFT_RECORD"):
        PAGE.write_text(recorded, encoding="utf-8")
    assert recorded == PAGE.read_text(encoding="utf-8")
