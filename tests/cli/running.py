"""`weft` commands as real processes: started on a free port, watched, and never left behind."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.model.checkpoints import write_checkpoint
from weft.cli.main import run

WEFT = (sys.executable, "-m", "weft.cli.main")
SMALL = (
    "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=300"
)
START_TIMEOUT_S = PATIENCE_S


def with_every_call(directory: Path) -> tuple[str, ...]:
    """A model and flags with which no HTTP call is off; what is written goes into the directory."""
    model = write_checkpoint(directory / "model")  # weights are sent to none that is made up
    profiler = json.dumps({"torch_profiler_dir": str(directory)})
    transfer = json.dumps({"backend": "shared_memory"})
    flags = ("--profiler-config", profiler, "--weight-transfer-config", transfer)
    return (str(model), *flags, "--enable-elastic-ep", "--num-threads", "2")


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of ours, or of a `make` that runs the tests."""
    ours = ("WEFT_", "MAKE", "MFLAGS", "ARGS")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return inherited | extra


def weft(
    *argv: str, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*WEFT, *argv],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=clean_environment(**environment),
        check=False,
    )


def here(*argv: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, which spares its imports: for what is about no process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name in os.environ.keys() - clean_environment().keys():
            patch.delenv(name)
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        for name, value in environment.items():
            patch.setenv(name, value)
        status = run(argv)
    return subprocess.CompletedProcess(argv, status, out.getvalue(), err.getvalue())


class Server:
    """A running `weft serve`, ready to answer."""

    def __init__(self, process: subprocess.Popen[str], banner: str) -> None:
        self.process = process
        self.banner = banner
        self.address = self._place("  gRPC")
        self.http = self._place("  HTTP")

    def _place(self, row: str) -> str:
        """Where the block says that a server listens; "" if it says nothing of it."""
        places = (line.split()[1] for line in self.banner.splitlines() if line.startswith(row))
        return next(places, "")

    @property
    def front(self) -> psutil.Process:
        """The process that was started."""
        return psutil.Process(self.process.pid)

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        (engine,) = self.front.children()
        return engine

    def send(self, number: signal.Signals) -> None:
        """Signal the front process."""
        self.process.send_signal(number)

    def get(self, path: str, **headers: str) -> str:
        """The text at a path."""
        answer = httpx2.get(f"{self.http}{path}", headers=headers, timeout=PATIENCE_S)
        return answer.raise_for_status().text

    def post(self, path: str, body: object, **headers: str) -> Any:
        """The JSON that a body is answered with."""
        url = f"{self.http}{path}"
        answer = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE_S)
        return answer.raise_for_status().json()

    def read_log_until(self, text: str) -> None:
        """Return when a line with `text` was logged."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        raise AssertionError(f"the log ended without {text!r}")

    def wait(self) -> tuple[int, str]:
        """Exit status and standard error, once it has ended."""
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextmanager
def started(
    *argv: str,
    last: str,
    program: tuple[str, ...] = WEFT,
    timeout_s: float = START_TIMEOUT_S,
    **environment: str,
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`weft ARGV`, and its output up to a line that begins with `last`; nothing is left after the block."""
    process = subprocess.Popen(
        [*program, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**environment),
    )
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    family: list[psutil.Process] = []
    try:
        lines = _read_until(process, last)
        watchdog.cancel()
        family = psutil.Process(process.pid).children(recursive=True)
        yield process, lines
    finally:
        watchdog.cancel()
        process.kill()
        for child in family:  # first: who outlives it holds its pipes open
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.communicate()


def _read_until(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(last):
            return lines
    _, err = process.communicate()
    raise AssertionError(f"it did not become ready:\n{''.join(lines)}{err}")


@contextmanager
def running(
    *argv: str, start_timeout_s: float = START_TIMEOUT_S, **settings: Any
) -> Iterator[Server]:
    """`weft serve ARGV` on a free port, from its ready block until the end of the block."""
    whole = ("serve", *argv, *_free_ports(argv))
    with started(*whole, last="  next", timeout_s=start_timeout_s, **settings) as (process, lines):
        yield Server(process, "".join(lines))


def _free_ports(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Ports for the servers that will listen."""
    return ("--port", "0") if "--remote" in argv else ("--grpc-port", "0", "--port", "0")


@contextmanager
def streaming(
    address: str, prompt: str, *argv: str
) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """`weft complete PROMPT` while its answer comes in, and the first byte of that."""
    process = subprocess.Popen(
        [*WEFT, "complete", prompt, "--address", address, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # so that reading one byte takes no more from the pipe than that
        env=clean_environment(),
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.read(1)
    finally:
        process.kill()
        process.communicate()
