"""Several coroutines that are one piece of work; waiting for what others do."""

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
    """The results in order. The first error is raised when the others have ended too: it cancels them.

    So does the caller's own cancellation. `asyncio.gather` leaves them running, and a TaskGroup raises a group.
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
    """The result of `work`, which goes on to its end where who waits for it is cancelled."""
    task = asyncio.create_task(work)
    # Nobody may be left to look at how it ended.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(task)


async def every(interval_s: float, act: Callable[[], Awaitable[None] | None]) -> None:
    """Act again and again, until cancelled. A failure is logged, once until it works again, and does not end it."""
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
                _log.exception("%s failed, and is tried again", task and task.get_name())
            is_failing = True
        else:
            is_failing = False


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until `event` is set; False if that takes longer than `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def gather_available(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What each of several engines answers, when all have; those that are `Unavailable` are left out.

    Raises the first error of another kind, or that one where none answers.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)
    good = [answer for answer in answers if not isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, BaseException) and not (good and isinstance(answer, Unavailable)):
            raise answer
    return good
