"""Helpers for asyncio: waiting for several coroutines, repeating work, and waiting with a time limit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from weft.core.errors import Unavailable

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def gather_all(
    work: Iterable[Coroutine[Any, Any, T]], on_done: Callable[[], None] = lambda: None
) -> list[T]:
    """Returns the results of several coroutines, in order.

    The first error cancels the others, and is raised when they have ended. A cancellation of the caller also cancels
    all coroutines and waits for their end. In contrast, `asyncio.gather` leaves them running, and a TaskGroup raises an
    exception group.
    """
    tasks = [asyncio.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(lambda _: on_done())
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which runs to its end even if the task that called this function is cancelled."""
    task = asyncio.create_task(work)
    # Retrieve the exception here: a cancelled caller will not do so.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(task)


async def in_place(places: asyncio.Semaphore, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Returns the result of `work()`, which takes one of `places` until it has ended.

    Work on a thread goes on when its caller is cancelled. It keeps its place until then: otherwise callers that give up
    could start any number of threads.
    """
    await places.acquire()
    task = asyncio.create_task(work())
    task.add_done_callback(lambda task: places.release())
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(task)


async def every(interval_s: float, act: Callable[[], Awaitable[None] | None]) -> None:
    """Calls `act` every `interval_s` seconds until cancelled.

    A failure of `act` does not end the repetition. It is logged once, and again only after `act` has succeeded in
    between.
    """
    is_failing = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            doing = act()
            if doing is not None:
                await doing
        except Exception:  # noqa: BLE001 - the root of a task: what it keeps fresh must not grow stale for good
            if not is_failing:
                task = asyncio.current_task()
                _log.exception("%s failed and will be retried", task and task.get_name())
            is_failing = True
        else:
            is_failing = False


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits until `event` is set; returns False if this takes longer than `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def gather_available(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the results of several engines' calls when all have ended, leaving out `Unavailable` engines.

    Raises the first error of another kind, or `Unavailable` if no engine answered.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)
    good = [answer for answer in answers if not isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, BaseException) and not (good and isinstance(answer, Unavailable)):
            raise answer
    return good
