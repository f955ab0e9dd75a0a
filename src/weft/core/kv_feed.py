"""`KvEventFeed`: buffers the last changes of the prefix cache, for subscribers who come late or fall behind."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator

import msgspec

from weft.core.errors import Overloaded
from weft.core.types import KvEvent, KvEventBatch

MAX_BUFFERED_BATCHES = 10_000  # what vLLM's publisher buffers for replay
# A batch holds up to a step's tokens: ten thousand large steps would take gigabytes.
MAX_BUFFERED_BYTES = 16 << 20


class KvEventFeed:
    """A ring of batches, and the subscribers who read from it. Lives on one event loop.

    Subscribers have nothing of their own but a place in the ring, so its bounds are those of all. It
    holds bytes: as objects, ten thousand batches of short prompts took 65 MiB, and take 5.
    """

    def __init__(self, max_batches: int = MAX_BUFFERED_BATCHES) -> None:
        self._max_batches = max_batches
        self._buffer: deque[bytes] = deque()
        self._num_buffered_bytes = 0
        self._num_published = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._error: BaseException | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(KvEventBatch)

    def publish(self, batch: KvEventBatch) -> None:
        """Buffer a batch for every subscriber; never waits."""
        encoded = self._encoder.encode(batch)
        self._buffer.append(encoded)
        self._num_buffered_bytes += len(encoded)
        self._num_published += 1
        while len(self._buffer) > self._max_batches or (
            self._num_buffered_bytes > MAX_BUFFERED_BYTES and len(self._buffer) > 1
        ):
            self._num_buffered_bytes -= len(self._buffer.popleft())
        self._wake()

    def publish_next(self, events: list[KvEvent], rank: int) -> KvEventBatch:
        """Publish what changed in a rank just now as the batch that follows the last one."""
        batch = KvEventBatch(
            sequence_number=self._num_published,
            timestamp=time.time(),
            events=events,
            data_parallel_rank=rank,
        )
        self.publish(batch)
        return batch

    def close(self, error: BaseException) -> None:
        """End every subscription with `error`, behind what is buffered."""
        self._error = error
        self._wake()

    async def subscribe(
        self, start_sequence_number: int | None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Buffered batches from `start_sequence_number` on (None: none of them), then new ones.

        Raises `Overloaded` once what is to come next was dropped.
        """
        place = self._num_published if start_sequence_number is None else self._first
        while True:
            while place < self._num_published:
                if place < self._first:
                    raise Overloaded(
                        f"subscriber left {self._num_published - place} batches unread"
                    )
                batch = self._decoder.decode(self._buffer[place - self._first])
                place += 1
                if batch.sequence_number >= (start_sequence_number or 0):
                    yield batch
            if self._error is not None:
                raise self._error
            woken = asyncio.get_running_loop().create_future()
            self._waiting.add(woken)
            try:
                await woken
            finally:
                self._waiting.discard(woken)

    def buffered(self, start_sequence_number: int, max_batches: int) -> Iterator[KvEventBatch]:
        """What is buffered of the last `max_batches` from that number on, while others are published.

        Those that are dropped before they are reached are missing.
        """
        end = self._num_published
        place = max(self._first, end - max_batches)
        if self._buffer:  # numbers never skip: those before the start need not be read
            oldest = self._decoder.decode(self._buffer[0]).sequence_number
            place = max(place, self._first + start_sequence_number - oldest)
        while (place := max(place, self._first)) < end:
            place += 1
            yield self._decoder.decode(self._buffer[place - 1 - self._first])

    @property
    def _first(self) -> int:
        """The place of the oldest batch in the buffer."""
        return self._num_published - len(self._buffer)

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
