"""How long an event loop was held: the longest of its callbacks, by the CPU time of its thread."""

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from tests.busy import slowness
from weft.web.http.options import HttpOptions

T = TypeVar("T")

# docs/decisions/0013, on a machine of our own. A slower one has as much longer as it is slower; and nothing can come
# between what reading one string of the largest body takes.
_MAX_PAUSE_S = 0.05
# Others on the same core make its work slower; a pause that the work makes, it makes each time.
TRIES = 3
_PROBES_A_SWEEP = 50
_num_probes = itertools.count(1)


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

    _set_aside_what_there_is()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield probe


def _set_aside_what_there_is() -> None:
    """What earlier tests left behind, and all that pytest holds, is no business of a collection during this one.

    It stays aside for the next probes, since walking all of it takes half a second; what has become garbage there goes
    now and then.
    """
    if next(_num_probes) % _PROBES_A_SWEEP == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def is_bounded(pause_s: float, num_strings: int = 1) -> bool:
    """Whether a loop was held no longer than it may be here and now, in CPU time: so many of the longest strings."""
    if pause_s < _MAX_PAUSE_S:
        return True
    return pause_s < max(_MAX_PAUSE_S * slowness(), num_strings * _string_s())


def _string_s() -> float:
    """What one piece of work takes that nothing can break up: measured anew, since machines have slow minutes."""
    body = b'"%b"' % (b"\\n" * (HttpOptions().max_body_bytes // 2 - 1))
    taken_s: list[float] = []
    for _ in range(TRIES):
        began_s = time.thread_time()
        msgspec.json.decode(body)
        taken_s.append(time.thread_time() - began_s)
    return min(taken_s)


async def check_pauses(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns, which as a task of its own does not hold the loop for too long each time."""
    found = []
    for _ in range(TRIES):
        with loop_probe() as probe:
            result = await asyncio.create_task(work())
        if is_bounded(probe.longest_s):
            return result
        found.append((probe.longest_s, probe.longest))
    raise AssertionError(found)
