"""Several coroutines that are one piece of work."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

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
