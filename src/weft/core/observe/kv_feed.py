"""`KvEventFeed`: buffers the latest changes of the prefix cache, for subscribers that start late or fall behind."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator

import msgspec

from weft.core.errors import Overloaded
from weft.core.values.kv_cache import KvEvent, KvEventBatch

MAX_BUFFERED_BATCHES = 10_000  # vLLM's publisher buffers as many batches for replay
# A batch holds up to one step's tokens: ten thousand batches of large steps would take gigabytes.
MAX_BUFFERED_BYTES = 16 << 20


class KvEventFeed:
    """A ring buffer of event batches, with its subscribers; belongs to one event loop.

    A subscriber stores only a position in the ring, so the bounds of the ring limit the memory of all subscribers.
    Batches are stored as bytes: ten thousand batches of short prompts took 65 MiB as objects, and take 5 MiB as bytes.
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
        """Buffers a batch for every subscriber, without waiting."""
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
        """Publishes cache changes of a rank as the batch with the next sequence number, and returns the batch."""
        batch = KvEventBatch(
            sequence_number=self._num_published,
            timestamp=time.time(),
            events=events,
            data_parallel_rank=rank,
        )
        self.publish(batch)
        return batch

    def close(self, error: BaseException) -> None:
        """Ends every subscription with `error`, after the buffered batches."""
        self._error = error
        self._wake()

    async def subscribe(
        self, start_sequence_number: int | None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yields buffered batches from `start_sequence_number` on (None: no buffered batches), then new batches.

        Raises `Overloaded` if the next batch is no longer in the buffer.
        """
        place = self._num_published if start_sequence_number is None else self._first
        while True:
            while place < self._num_published:
                if place < self._first:
                    raise Overloaded(
                        f"the subscriber is too slow: it left {self._num_published - place} batches unread"
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
        """Yields the last `max_batches` batches that are still buffered and not older than `start_sequence_number`.

        Other tasks may publish during the iteration: a batch that the buffer drops before the iteration reaches it is
        missing.
        """
        end = self._num_published
        place = max(self._first, end - max_batches)
        if (
            self._buffer
        ):  # sequence numbers have no gaps: batches before the start need not be decoded
            oldest = self._decoder.decode(self._buffer[0]).sequence_number
            place = max(place, self._first + start_sequence_number - oldest)
        while (place := max(place, self._first)) < end:
            place += 1
            yield self._decoder.decode(self._buffer[place - 1 - self._first])

    @property
    def _first(self) -> int:
        """Position of the oldest buffered batch, counted from the first batch ever published."""
        return self._num_published - len(self._buffer)

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
