"""`KvEventFeed`: keeps the last changes of the prefix cache, for subscribers who come late or fall behind."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from weft.core.errors import Overloaded
from weft.core.types import BlockStored, KvEventBatch

MAX_KEPT_BATCHES = 10_000  # what vLLM's publisher keeps for replay
# A batch holds up to a step's tokens, 36 bytes each: ten thousand large steps would take gigabytes.
MAX_KEPT_TOKENS = 1_000_000
MAX_BACKLOG = 10_000  # batches that one subscriber may leave unread


class KvEventFeed:
    """A ring of batches, and the subscribers waiting for more. Lives on one event loop."""

    def __init__(self) -> None:
        self._kept: deque[KvEventBatch] = deque()
        self._num_kept_tokens = 0
        self._subscribers: set[asyncio.Queue[KvEventBatch | BaseException]] = set()

    def publish(self, batch: KvEventBatch) -> None:
        """Keep a batch and hand it to every subscriber; never waits."""
        self._keep(batch)
        for queue in list(self._subscribers):
            if queue.qsize() >= MAX_BACKLOG:
                self._end(queue, Overloaded(f"subscriber left {MAX_BACKLOG} batches unread"))
            else:
                queue.put_nowait(batch)

    def _keep(self, batch: KvEventBatch) -> None:
        self._kept.append(batch)
        self._num_kept_tokens += _num_tokens(batch)
        while len(self._kept) > MAX_KEPT_BATCHES or (
            self._num_kept_tokens > MAX_KEPT_TOKENS and len(self._kept) > 1
        ):
            self._num_kept_tokens -= _num_tokens(self._kept.popleft())

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


def _num_tokens(batch: KvEventBatch) -> int:
    return sum(len(event.token_ids) for event in batch.events if isinstance(event, BlockStored))
