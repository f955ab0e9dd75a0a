"""A write that takes too long is noticed, and one that does not is left alone."""

import asyncio

from tests.busy import PATIENCE_S
from weft.core.aio.write_stall import WriteStall


async def test_a_write_that_takes_too_long_is_noticed():
    """Also when quick ones came before it."""
    stalled = asyncio.Event()
    stall = WriteStall(0.01, stalled.set)
    with stall:
        pass
    with stall:
        await asyncio.wait_for(stalled.wait(), PATIENCE_S)


async def test_a_stall_is_noticed_once():
    """What happens behind it is not watched."""
    stalls = []
    stall = WriteStall(0.0, lambda: stalls.append(1))
    for _ in range(3):
        with stall:
            await asyncio.sleep(0.01)
    assert stalls == [1]


async def test_time_between_writes_does_not_count():
    """A model that computes for long is no reader that does not read."""
    stalls = []
    stall = WriteStall(0.01, lambda: stalls.append(1))
    with stall:
        pass
    await asyncio.sleep(0.05)
    with stall:
        pass
    stall.stop()
    assert stalls == []


async def test_nothing_is_watched_after_the_last_write():
    """No timer outlives an answer."""
    stalls = []
    stall = WriteStall(0.0, lambda: stalls.append(1))
    with stall:
        stall.stop()
        await asyncio.sleep(0.01)
    assert stalls == []
