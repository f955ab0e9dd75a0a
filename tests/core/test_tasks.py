"""`gather_all`: all of it, or nothing that still runs; `every`: again and again, whatever happens."""

import asyncio
import logging

import pytest

from weft.core.aio.tasks import every, gather_all


async def test_results_keep_their_order():
    """Whichever ends first; and each end is reported."""
    ended: list[None] = []

    async def wait(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_all((wait(turns) for turns in (5, 0, 3)), lambda: ended.append(None)) == [
        5,
        0,
        3,
    ]
    assert len(ended) == 3


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["an error", "the caller"])
async def test_the_others_have_ended_before_it_raises(is_cancelled: bool):
    """Whether one of them fails or who waits for them is cancelled."""
    open_ones: set[int] = set()

    async def hold(number: int) -> None:
        open_ones.add(number)
        try:
            if number == 1 and not is_cancelled:
                raise ValueError(number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            open_ones.discard(number)

    task = asyncio.create_task(gather_all(hold(number) for number in range(3)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if is_cancelled:
        assert open_ones == {0, 1, 2}
        task.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
        await task
    assert not open_ones


@pytest.mark.parametrize("waits", [False, True], ids=["a function", "a coroutine"])
async def test_what_is_done_again_and_again_outlives_a_failure(
    waits: bool, caplog: pytest.LogCaptureFixture
):
    """Failures one after another are logged once, with the task's name; after a success anew."""
    fails = iter([True, True, False, True])
    over = asyncio.Event()

    def act() -> None:
        if (now := next(fails, None)) is None:
            over.set()
        elif now:
            raise ValueError("odd")

    async def act_later() -> None:
        act()

    task = asyncio.create_task(every(0.0, act_later if waits else act), name="the sweep")
    await over.wait()
    task.cancel()
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in logged] == ["the sweep failed and will be retried"] * 2
    assert all(record.exc_info for record in logged)
