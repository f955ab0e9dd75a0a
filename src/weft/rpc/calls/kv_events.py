"""The SubscribeKvEvents call: changes of the prefix cache as they happen, and load records in between."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from weft.core.client import EngineClient
from weft.core.errors import Unsupported
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.pb import common_pb2
from weft.rpc.boundary import CallWriter, Context
from weft.rpc.convert.kv_events import KvEventWriter

T = TypeVar("T")

# Batches decoded ahead: each may hold the blocks of a step, and takes up to a millisecond to decode.
_NUM_AHEAD = 8


class KvEventsCall:
    """Serves SubscribeKvEvents."""

    def __init__(self, client: EngineClient, *, heartbeat_s: float, write_timeout_s: float) -> None:
        self._client = client
        self._heartbeat_s = heartbeat_s
        self._write_timeout_s = write_timeout_s

    async def __call__(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> None:
        """Serves one subscriber until it disconnects or the engine ends."""
        if not self._client.info.has_kv_events:
            raise Unsupported("prefix-cache events are not available: prefix caching is off")
        batches = self._client.subscribe_kv_events(request.start_sequence_number)
        subscriber = _Subscriber(self._client, max_load_age_s=self._heartbeat_s)
        # An older subscriber would mistake a load record before the first batch for a repeated batch.
        wants_heartbeats = request.load_records_before_first_batch
        await context.send_initial_metadata(())
        async with (
            aclosing(with_ticks(batches, self._heartbeat_s)) as ticking,
            CallWriter(context, ticking, self._write_timeout_s) as writer,
        ):
            if wants_heartbeats:
                await self._write(await subscriber.heartbeats(), writer)
            async for batch in ticking:
                if batch is not None:
                    wants_heartbeats = True
                    await self._write([await subscriber.batch(batch)], writer)
                elif wants_heartbeats:
                    await self._write(await subscriber.heartbeats(), writer)

    async def _write(self, messages: list[common_pb2.KvEventBatch], writer: CallWriter) -> None:
        for message in messages:
            await writer.write(message)


class _Subscriber:
    """Events for one subscriber; the load is read at most once per heartbeat."""

    def __init__(self, client: EngineClient, *, max_load_age_s: float) -> None:
        self._client = client
        self._max_load_age_s = max_load_age_s
        self._writer = KvEventWriter()
        self._loads: list[EngineLoad] = []
        self._loaded_at = float("-inf")

    async def batch(self, batch: KvEventBatch) -> common_pb2.KvEventBatch:
        """The changes of one step, with a load that is not older than a heartbeat."""
        # The call goes through the engine's mailbox, so it waits for the end of a step.
        if time.monotonic() - self._loaded_at >= self._max_load_age_s:
            await self._read_loads()
        rank = batch.data_parallel_rank
        load = next((load for load in self._loads if load.data_parallel_rank == rank), None)
        return self._writer.batch(batch, load, age_s=time.monotonic() - self._loaded_at)

    async def heartbeats(self) -> list[common_pb2.KvEventBatch]:
        """Returns a load record for each rank."""
        await self._read_loads()
        return [self._writer.heartbeat(load, time.time()) for load in self._loads]

    async def _read_loads(self) -> None:
        self._loads = await self._client.get_loads()
        self._loaded_at = time.monotonic()


async def with_ticks(
    source: AsyncGenerator[T, None], interval_s: float
) -> AsyncGenerator[T | None, None]:
    """Yields the items of `source`, and None after every `interval_s` without one.

    Owns `source`. Ready items are read ahead: otherwise a reader on a busy loop gets one item per turn, and falls
    behind.
    """
    items: asyncio.Queue[T | None] = asyncio.Queue()
    room = asyncio.Semaphore(_NUM_AHEAD)

    async def fill() -> None:
        try:
            async for item in source:
                await room.acquire()
                items.put_nowait(item)
        finally:
            items.put_nowait(None)

    async with aclosing(source):
        filling = asyncio.ensure_future(fill())
        try:
            while True:
                try:
                    async with asyncio.timeout(interval_s):
                        item = await items.get()
                except TimeoutError:
                    yield None
                    continue
                if item is None:
                    break
                room.release()
                yield item
            await filling
        finally:
            # A running generator cannot be closed: cancel it first, and wait.
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
