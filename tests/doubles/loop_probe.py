"""How long an event loop was held: the longest of its callbacks, by the CPU time of its thread."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

# docs/decisions/0013
MAX_PAUSE_S = 0.05
# Others on the same core make its work slower; a pause that the work makes, it makes each time.
_TRIES = 3


class LoopProbe:
    """Time that a thread does not get on a busy machine does not count."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""


@contextmanager
def loop_probe() -> Iterator[LoopProbe]:
    """Every callback of every loop is timed meanwhile; a task's step is one."""
    probe = LoopProbe()
    run = asyncio.Handle._run  # type: ignore[attr-defined]  # where a loop runs each callback

    def timed(self: asyncio.Handle) -> None:
        started = time.thread_time()
        run(self)
        took_s = time.thread_time() - started
        if took_s > probe.longest_s:
            probe.longest_s, probe.longest = took_s, repr(self)

    # What earlier tests left behind is no business of a collection during this one.
    gc.collect()
    gc.freeze()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", timed)
            yield probe
    finally:
        gc.unfreeze()


async def check_pauses(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns, which as a task of its own does not hold the loop for too long each time."""
    found = []
    for _ in range(_TRIES):
        with loop_probe() as probe:
            result = await asyncio.create_task(work())
        if probe.longest_s < MAX_PAUSE_S:
            return result
        found.append((probe.longest_s, probe.longest))
    raise AssertionError(found)
