"""`KvEventFeed`: keeps the last changes of the prefix cache, for subscribers who come late or fall behind."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from weft.core.errors import Overloaded
from weft.core.types import KvEventBatch

MAX_KEPT_BATCHES = 10_000  # what vLLM's publisher keeps for replay
MAX_BACKLOG = 10_000  # batches that one subscriber may leave unread


class KvEventFeed:
    """A ring of batches, and the subscribers waiting for more. Lives on one event loop."""

    def __init__(self) -> None:
        self._kept: deque[KvEventBatch] = deque(maxlen=MAX_KEPT_BATCHES)
        self._subscribers: set[asyncio.Queue[KvEventBatch | BaseException]] = set()

    def publish(self, batch: KvEventBatch) -> None:
        """Keep a batch and hand it to every subscriber; never waits."""
        self._kept.append(batch)
        for queue in list(self._subscribers):
            if queue.qsize() >= MAX_BACKLOG:
                self._end(queue, Overloaded(f"subscriber left {MAX_BACKLOG} batches unread"))
            else:
                queue.put_nowait(batch)

    def close(self, error: BaseException) -> None:
        """End every subscription with `error`."""
        for queue in list(self._subscribers):
            self._end(queue, error)

    async def subscribe(
        self, start_sequence_number: int | None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Kept batches from `start_sequence_number` on (None: none of them), then new ones."""
        queue: asyncio.Queue[KvEventBatch | BaseException] = asyncio.Queue()
        if start_sequence_number is not None:
            for batch in self._kept:
                if batch.sequence_number >= start_sequence_number:
                    queue.put_nowait(batch)
        self._subscribers.add(queue)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._subscribers.discard(queue)

    def _end(
        self, queue: asyncio.Queue[KvEventBatch | BaseException], error: BaseException
    ) -> None:
        self._subscribers.discard(queue)
        queue.put_nowait(error)
