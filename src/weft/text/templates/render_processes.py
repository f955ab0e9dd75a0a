"""`RenderProcesses`: the child processes that render chat templates, and the queue of renderings for them.

Templates run only in these processes: templates come from models or requests, and neither a sandbox nor a thread can
stop a template that loops for ever. Long conversations have separate processes, so that short conversations never wait
for them.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Self, TypeVar

from weft.core.aio.worker import Worker
from weft.core.errors import BadRequest

# Rendering messages with this many characters of JSON takes about 20 ms.
_MAX_SHORT_CHARS: Final = 2**15
# Maximum processes of each kind, if the machine has as many CPUs. A process starts when all others of its kind are
# busy.
_MAX_PROCESSES: Final = 4
_NUM_THREADS: Final = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering; input is counted as JSON."""

    time_limit_s: float = 2.0
    max_chars: int = 8 * 1024 * 1024
    max_input_chars: int = 16 * 1024 * 1024
    max_memory_bytes: int = 1024 * 1024 * 1024

    @classmethod
    def for_texts(cls, max_text_chars: int) -> Self:
        """Returns limits for servers that accept texts up to a length. Templates may omit input, such as earlier
        reasoning.
        """
        return cls(max_input_chars=min(2 * max_text_chars, cls().max_input_chars))


@dataclass(frozen=True, slots=True)
class Rendering:
    """A template and its variables, as a line of JSON, for a process.

    `finish` converts the text that the process writes to the result. Errors name `parameter`.
    """

    parameter: str
    source: str
    line: str
    finish: Callable[[str], str] = str

    @property
    def is_long(self) -> bool:
        """True if the rendering may take long because of its length."""
        return len(self.line) > _MAX_SHORT_CHARS


class RenderProcesses:
    """Processes that render templates. They start on demand, and again after a process was killed."""

    def __init__(self, limits: RenderLimits) -> None:
        num_each = max(1, min(_MAX_PROCESSES, (os.cpu_count() or 1) // 4))
        self.limits = limits
        self._short, self._long = _Processes(limits, 2 * num_each), _Processes(limits, num_each)
        # Separate threads: a request that waits for a process must not occupy a thread that others need.
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "weft-template")
        self._threads_of_long = ThreadPoolExecutor(num_each, "weft-template-long")

    def run(self, rendering: Rendering) -> str:
        """Returns the rendered text; raises `BadRequest` if the template fails or exceeds a limit."""
        return rendering.finish((self._long if rendering.is_long else self._short).call(rendering))

    async def run_soon(self, begin: Callable[[], tuple[Rendering, T]]) -> tuple[str, T]:
        """Returns the rendered text of the rendering that `begin` creates on a thread, and the other result of
        `begin`.
        """

        def run_short() -> tuple[Rendering, str | None, T]:
            rendering, found = begin()
            if rendering.is_long:
                return rendering, None, found
            return rendering, rendering.finish(self._short.call(rendering)), found

        loop = asyncio.get_running_loop()
        rendering, answer, found = await loop.run_in_executor(self._threads, run_short)
        if answer is None:
            answer = await loop.run_in_executor(self._threads_of_long, self.run, rendering)
        return answer, found

    def close(self) -> None:
        """End the child processes; a later rendering starts another."""
        self._short.close()
        self._long.close()


class _Processes:
    """A bounded number of processes, each of which handles one call at a time. The process used last is used next."""

    def __init__(self, limits: RenderLimits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._turns = threading.BoundedSemaphore(most)
        self._idle: list[Worker] = []

    def call(self, rendering: Rendering) -> str:
        head = json.dumps({"source": rendering.source})
        with self._turns:
            worker = self._take()
            answer = worker.call(f"{head}\t{rendering.line}")
            if answer is None:
                worker.stop()
            else:
                self._idle.append(worker)
        return self._read(rendering.parameter, answer)

    def _take(self) -> Worker:
        try:
            return self._idle.pop()
        except IndexError:
            return Worker(
                "weft.text.templates.render_worker", json.dumps(asdict(self._limits)) + "\n"
            )

    def _read(self, parameter: str, answer: Mapping[str, Any] | None) -> str:
        if answer is None:
            raise BadRequest(
                parameter,
                f"the chat template did not finish within {self._limits.time_limit_s:g} s "
                "and its memory limit",
            )
        if "error" in answer:
            raise BadRequest(parameter, f"the chat template failed: {answer['error']}")
        return str(answer["text"])

    def close(self) -> None:
        for _ in range(self._most):  # started after the response to the waiting request
            self._turns.acquire()
        try:
            while self._idle:
                self._idle.pop().stop()
        finally:
            self._turns.release(self._most)
