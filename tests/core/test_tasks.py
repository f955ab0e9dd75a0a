"""`gather_all`: all of it, or nothing that still runs; `every`: again and again, whatever happens."""

import asyncio
import logging
import threading
from functools import partial

import pytest

from tests.busy import until
from weft.core.aio.tasks import every, gather_all, in_place


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


async def test_a_thread_keeps_its_place_when_its_caller_gives_up():
    """Otherwise callers that leave at once could start any number of threads."""
    places, may_end = asyncio.Semaphore(1), threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        may_end.wait()

    def start(number: int) -> asyncio.Task[None]:
        return asyncio.create_task(in_place(places, partial(asyncio.to_thread, work, number)))

    first = start(0)
    await until(lambda: begun)
    second = start(1)
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    assert places.locked()
    assert begun == [0]
    second.cancel()  # a caller that waits for a place gives up without taking it
    third = start(2)
    may_end.set()
    await third
    assert begun == [0, 2]
    assert not places.locked()


async def test_work_that_fails_gives_its_place_back():
    """Its caller gets the error."""
    places = asyncio.Semaphore(1)

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_place(places, fail)
    assert not places.locked()
