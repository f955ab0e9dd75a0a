"""Several coroutines that are one piece of work; waiting for what others do."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from weft.core.errors import Unavailable

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
