"""Merges several streams into one: the outputs of several prompts, or of several answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields the items of all streams as they arrive, each with the index of its stream.

    The first error ends all streams; closing the generator closes all streams. At most one item of each stream waits to
    be read, so that a slow reader slows the streams down.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, list[T]]] = asyncio.Queue()  # one item and one end per stream
    slots = [asyncio.Semaphore(1) for _ in streams]
    tasks: list[asyncio.Task[None]] = []
    try:
        for position, stream in enumerate(streams):
            task = asyncio.create_task(_pump(position, stream, slots[position], queue))
            task.add_done_callback(lambda _, position=position: queue.put_nowait((position, [])))  # type: ignore[misc]
            tasks.append(task)
            await asyncio.sleep(0)  # one stream begins per turn of the event loop
        num_open = len(streams)
        while num_open:
            position, items = await queue.get()
            if items:
                slots[position].release()
                yield position, items[0]
            else:
                tasks[position].result()
                num_open -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    position: int,
    stream: AsyncGenerator[T, None],
    slot: asyncio.Semaphore,
    queue: asyncio.Queue[tuple[int, list[T]]],
) -> None:
    async with aclosing(stream):
        async for item in stream:
            await slot.acquire()
            queue.put_nowait((position, [item]))
