"""How long a test waits on a machine that has other work too.

A guard against hanging is `PATIENCE_S`: no test that passes comes near it, whatever else runs. Where a
rule says "soon", its bound is stretched by what the machine is under when it is looked at, and by how much slower the
machine is than ours.
"""

import asyncio
import time
from collections.abc import Callable
from mmap import mmap

PATIENCE_S = 90.0
_SAMPLE_S = 0.1
# One process that waits for another, and that for a third, each in the queue of the processors.
_IN_TURN = 3
# CPU time of the two units of work below on a machine of our own: two virtual cores of an AMD EPYC, with other work.
_COMPUTING_S = 0.0052
_NEW_PAGES_S = 0.015
_UNIT_BYTES = 25 * 2**20
_TRIES = 3


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


def slowness() -> float:
    """How many times the CPU time of our own machine a piece of work takes on this one, at least 1.

    Machines differ by other factors in computing and in what a new page of memory costs: the larger factor counts.
    """
    data = bytes(_UNIT_BYTES)
    computing_s = min(_cpu_s(_compute) for _ in range(_TRIES))
    new_pages_s = min(_cpu_s(lambda: _copy(data)) for _ in range(_TRIES))
    return max(1.0, computing_s / _COMPUTING_S, new_pages_s / _NEW_PAGES_S)


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def _compute() -> int:
    return sum(i * i % 7 for i in range(100_000))


def _copy(data: bytes) -> None:
    with mmap(-1, len(data)) as new_pages:
        new_pages[:] = data


def stretched(bound_s: float) -> float:
    """The bound as it is on a machine of our own, longer the more others want this one, and the slower it is."""
    excess = strain() - 1
    return bound_s * (1 + _IN_TURN * excess) * slowness()


def is_within(took_s: float, bound_s: float) -> bool:
    """Whether it was soon enough; what the machine is under is looked at only if it was not."""
    return took_s < bound_s or took_s < stretched(bound_s)
