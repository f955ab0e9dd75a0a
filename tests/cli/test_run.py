"""`weft run`: a server and a chat in one, and nothing left behind."""

import json
import os
import signal
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.cli.running import WEFT, clean_environment, weft
from tests.cli.terminal import Terminal

CTRL_D = b"\x04"


def test_a_message_is_answered_and_everything_ends(tmp_path: Path):
    """Flags of the engine and of the log reach it; what it logs is in a file for the owner alone."""
    argv = ("run", "embedded:echo", "hello", "-c", "64", "--served-model-name", "parrot", "--json")
    argv += ("--log-format", "json")
    result = weft(*argv, XDG_STATE_HOME=str(tmp_path), WEFT_API_KEY="not for this")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["model"]) == (0, "parrot")
    assert answer["content"].split() == ["user", "hello", "assistant"]
    log = tmp_path / "weft" / "run.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["process"] for line in logged} == {"server"}
    assert any("Uvicorn running on http://127.0.0.1:" in line["message"] for line in logged)
    assert str(log) in result.stderr


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (("/no/such/model", "hi"), 2, "no such directory"),
        pytest.param(("embedded:echo", "hi", "--top-p", "2"), 2, "top_p", marks=pytest.mark.slow),
        (("embedded:echo", "hi", "--port", "99999"), 2, "--port must be between"),
        (("embedded:echo", "hi", "--log-file", "/no/such/place/log"), 2, "--log-file: "),
        (("embedded:echo", " "), 2, "the message must not be empty"),
    ],
)
def test_what_cannot_be_run_is_refused_as_by_serve(tmp_path: Path, argv, status: int, words: str):
    """With its sentence and its status."""
    result = weft("run", *argv, XDG_STATE_HOME=str(tmp_path))
    assert (result.returncode, result.stdout) == (status, "")
    assert words in result.stderr.splitlines()[-1]


def test_a_conversation_ends_with_its_server(tmp_path: Path):
    """Ctrl-D ends both."""
    state = {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    with closing(Terminal("run", "embedded:echo", **state)) as terminal:
        terminal.read_until(b"\x1b[?2004h")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        assert len(family) >= 2  # the server and its engine
        terminal.type(b"hello\r")
        terminal.read_until(b"assistant")
        terminal.read_until(b"\x1b[?2004h")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.usefixtures("ctrl_c")
async def test_whatever_ends_it_ends_its_server(tmp_path: Path, number: signal.Signals):
    """A signal in the middle of an answer."""
    environment = clean_environment(XDG_STATE_HOME=str(tmp_path))
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        [*WEFT, "run", "embedded:echo?itl_ms=50", "x" * 1000, "--no-history"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2
        os.kill(process.pid, number)
        process.communicate()
    assert process.returncode == (-number if number is signal.SIGKILL else 128 + number)
    await until(lambda: not any(one.is_running() and one.status() != "zombie" for one in family))
