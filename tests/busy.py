"""How long a test waits on a machine that has other work too.

A guard against hanging is `PATIENCE_S`: no test that passes comes near it, whatever else runs. Where a
rule says "soon", its bound is stretched by what the machine is under when it is looked at.
"""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 90.0
_SAMPLE_S = 0.1
# One process that waits for another, and that for a third, each in the queue of the processors.
_IN_TURN = 3


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a state that nobody is notified of, instead of a time after which it should be there."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.01)


def strain() -> float:
    """How many times its own processor time a piece of work takes here now; 1 where nothing else runs."""
    began, began_cpu = time.monotonic(), time.thread_time()
    while time.thread_time() - began_cpu < _SAMPLE_S:
        sum(range(1000))
    return max(1.0, (time.monotonic() - began) / (time.thread_time() - began_cpu))


def stretched(bound_s: float) -> float:
    """The bound as it is on a machine of our own, and longer the more others want this one."""
    excess = strain() - 1
    return bound_s * (1 + _IN_TURN * excess)


def is_within(took_s: float, bound_s: float) -> bool:
    """Whether it was soon enough; what the machine is under is looked at only if it was not."""
    return took_s < bound_s or took_s < stretched(bound_s)
