"""Child processes of `weft up` and `weft run`: their output and end are monitored, and they never outlive their
parent.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TextIO

import msgspec

from weft.core.errors import WeftError
from weft.core.observe.log import LogFormat
from weft.core.observe.terminal import say

_PR_SET_PDEATHSIG: Final = 1
_MAX_LINE: Final = 2**16
_MAX_LOG_LINES: Final = 20


class ChildFailed(WeftError):
    """Error: a child process ended before it was ready."""


class Child:
    """A child process. Its standard error is written to `log`, or to this process's standard error, each line with the
    child's name.
    """

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        log: TextIO | None,
        log_format: LogFormat,
    ) -> None:
        self.name = name
        self.process = process
        self._log = log or sys.stderr
        self._format = log_format
        self._last_lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        self._relay = asyncio.create_task(self._relay_errors(), name=f"weft-{name}")
        self._sink: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log: TextIO | None = None,
        *,
        log_format: LogFormat = "text",
    ) -> "Child":
        """Starts the process in a session of its own: Ctrl-C then reaches only this process, which stops its children
        in turn.
        """
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_MAX_LINE,
            env=environment,
            preexec_fn=_die_with_parent() if sys.platform == "linux" else None,
        )
        return cls(name, process, log, log_format)

    async def read_until(self, start: str) -> list[str]:
        """Returns the lines of the process's standard output up to the line that begins with `start`. Raises
        `ChildFailed` if the process ends before that line.
        """
        assert self.process.stdout is not None
        lines: list[str] = []
        while line := (await self.process.stdout.readline()).decode(errors="replace").rstrip("\n"):
            lines.append(line)
            if line.startswith(start):
                self._sink = asyncio.create_task(self._discard_output())
                return lines
        await self.process.wait()
        await self._relay
        raise self.failure()

    @property
    def last_line(self) -> str:
        """The last line of the process's standard error."""
        return self._last_lines[-1] if self._last_lines else "it wrote no error message"

    def failure(self) -> ChildFailed:
        """Returns the error for a child process that ended by itself."""
        status = self.process.returncode
        return ChildFailed(f"{self.name} ended with status {status}: {self.last_line}")

    async def stop(self, timeout_s: float) -> None:
        """Sends SIGTERM to the process, and SIGKILL if it has not ended after `timeout_s`."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self.process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self.process.wait()
        for task in (self._relay, self._sink):
            if task is not None:
                task.cancel()
        await asyncio.gather(self._relay, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass  # the process has just ended

    async def _relay_errors(self) -> None:
        assert self.process.stderr is not None
        while True:
            try:
                line = await self.process.stderr.readline()
            except ValueError:
                continue  # the line was too long, and the stream has dropped it
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            is_text = self._format == "text"
            labelled = f"[{self.name}] {text}" if is_text else _as_json(self.name, text)
            say(labelled, file=self._log)

    async def _discard_output(self) -> None:
        assert self.process.stdout is not None
        while await self.process.stdout.read(_MAX_LINE):
            pass


def _as_json(name: str, text: str) -> str:
    """Returns a log line of the process `name` as a JSON object. `text` may be a JSON object already or, as from Envoy,
    plain text.
    """
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        fields = {"message": text}
    return msgspec.json.encode({"process": name, **fields}).decode()


def _die_with_parent() -> Callable[[], None]:
    """Returns a function that makes Linux end the child when this process ends, even by SIGKILL. The library is loaded
    here, before the fork; the child calls only the function.
    """
    prctl = ctypes.CDLL(None).prctl

    def set_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    return set_signal


def weft_command() -> list[str]:
    """Returns the command line that starts `weft` in another process."""
    return [sys.executable, "-m", "weft.cli.main"]


def inherited_environment(num_processes: int) -> dict[str, str]:
    """Returns this process's environment for a child process, without WEFT_ variables; the CPU cores are divided among
    `num_processes`.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    return {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} | inherited
