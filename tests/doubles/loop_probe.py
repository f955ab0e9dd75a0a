"""How long an event loop was held: the longest of its callbacks, by the CPU time of its thread."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


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
