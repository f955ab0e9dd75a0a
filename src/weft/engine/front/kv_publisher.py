"""`KvPublisher`: publishes prefix cache events over ZeroMQ, in vLLM's message format, from the feed that gRPC reads
too.

A message has the frames topic, number (8 bytes, big-endian) and a msgpack array [time, events, rank]. A replay
request carries the first number wanted; a replay ends with number -1 and an empty payload.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, assert_never

import msgspec
import zmq

from weft.core.errors import ConfigError
from weft.core.observe.kv_feed import MAX_BUFFERED_BATCHES, KvEventFeed
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvEventsConfig,
    at_rank,
)
from weft.engine.settings.kv_events import FLAG

log = logging.getLogger("weft.engine")

MAX_REPLAYS: Final = 16  # concurrent replays; further requests wait
_MAX_QUEUED_REPLAYED: Final = 256  # messages queued for one reader
_BATCHES_PER_TURN: Final = 16  # of the event loop, for one reader
_REQUESTS_PER_TURN: Final = 64
# Subscriptions read in one go, of all readers; the others wait for the next batch. The number exceeds what ZeroMQ
# queues for one connection.
_SUBSCRIPTIONS_PER_BATCH: Final = 4096
_MAX_RECEIVED_BYTES: Final = 1024  # a message holds a number or a topic
_STALLED_MS: Final = 30_000  # a reader that reads nothing for this time is disconnected
_RETRY_S: Final = 0.01
_END: Final = (b"\xff" * 8, b"")


class _Stored(msgspec.Struct, array_like=True, tag="BlockStored"):
    """A `BlockStored` message. Fields are in vLLM's order; consumers read as many fields as they know."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[tuple[str] | None] | None = None


class _Removed(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None


class _Cleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


@dataclass(slots=True)
class _Replay:
    """Batches that are still to be sent to one reader. A reader with a REQ socket accepts a single reply, so it gets
    all batches in one message.
    """

    batches: Iterator[KvEventBatch]
    is_single: bool
    moved_at: float
    last: KvEventBatch | None = None
    events: list[msgspec.Raw] = field(default_factory=list)
    unsent: tuple[bytes, bytes] | None = None


class KvPublisher:
    """Publisher of one rank's events; runs on the event loop of the feed. Raises `ConfigError` if it cannot listen."""

    def __init__(self, config: KvEventsConfig, feed: KvEventFeed, rank: int = 0) -> None:
        self._config = config
        self._feed = feed
        self._rank = rank
        self._topic = config.topic.encode()
        self._to_hash: Callable[[bytes], int | bytes] = _to_int if config.has_int_hashes else bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._loop = asyncio.get_running_loop()
        self._replays: dict[bytes, _Replay] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._publisher = self._open_publisher()
            if config.replay_endpoint is not None:
                self._router = self._open_router(config.replay_endpoint)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        if self._router is not None:
            self._loop.add_reader(self._router.fileno(), self._serve_replays)

    def publish(self, batch: KvEventBatch) -> None:
        """Sends a batch to all subscribers; never waits. The feed already holds the batch for replays."""
        self._take_subscriptions()
        self._publisher.send_multipart([self._topic, *self._message(batch)], zmq.NOBLOCK)

    def close(self) -> None:
        """Closes all sockets; unsent messages are dropped."""
        if self._timer is not None:
            self._timer.cancel()
        if self._router is not None:
            self._loop.remove_reader(self._router.fileno())
        self._context.destroy(linger=0)

    # -- sockets ------------------------------------------------------------------------------

    def _open_publisher(self) -> "zmq.Socket[bytes]":
        config = self._config
        socket = self._socket(zmq.XPUB, config.endpoint, config.hwm)
        socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self._attach(socket, "endpoint", config.endpoint, is_bound=config.binds)
        return socket

    def _open_router(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._socket(zmq.ROUTER, endpoint, _MAX_QUEUED_REPLAYED)
        # Otherwise ZeroMQ silently drops messages that a slow reader has no room for.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._attach(socket, "replay_endpoint", endpoint, is_bound=True)
        return socket

    def _socket(self, kind: int, endpoint: str, max_queued: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        # With this option, a host name that has IPv4 and IPv6 addresses is tried over IPv6 alone.
        socket.setsockopt(zmq.IPV6, "[" in endpoint or "*" in endpoint)
        socket.setsockopt(zmq.SNDHWM, max_queued)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_RECEIVED_BYTES)
        socket.setsockopt(zmq.TCP_MAXRT, _STALLED_MS)
        return socket

    def _attach(
        self, socket: "zmq.Socket[bytes]", name: str, endpoint: str, *, is_bound: bool
    ) -> None:
        place = at_rank(endpoint, self._rank)
        try:
            (socket.bind if is_bound else socket.connect)(place)
        except zmq.ZMQError as error:
            raise ConfigError(f"{FLAG}: {name} {place}: {error.strerror}") from error
        reach = (
            "readable by anyone who can connect"
            if is_bound
            else "sent to the process that listens there"
        )
        log.info("cache events, which contain prompt tokens: %s %s, %s", name, place, reach)

    def _take_subscriptions(self) -> None:
        """Accepts subscriptions that match the topic. Reads a limited number at once, because a peer may send them
        without end.
        """
        with suppress(zmq.Again):
            for _ in range(_SUBSCRIPTIONS_PER_BATCH):
                message = self._publisher.recv(zmq.NOBLOCK)
                if self._topic.startswith(message[1:]):
                    option = zmq.SUBSCRIBE if message[0] else zmq.UNSUBSCRIBE
                    self._publisher.setsockopt(option, message[1:])

    # -- replays ------------------------------------------------------------------------------

    def _serve_replays(self) -> None:
        """Reads replay requests and sends replays as far as readers have room, a few batches a turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take_requests()
        is_waiting = [self._advance(reader, replay) for reader, replay in [*self._replays.items()]]
        # A ROUTER does not report which peer has room again. Its file descriptor becomes readable once for all
        # messages that have arrived, including those that arrived while it was sending.
        if self._replays:
            self._timer = self._loop.call_later(
                _RETRY_S if all(is_waiting) else 0, self._serve_replays
            )
        elif self._has_requests():
            self._timer = self._loop.call_later(0, self._serve_replays)

    def _has_requests(self) -> bool:
        assert self._router is not None
        return bool(int(self._router.get(zmq.EVENTS)) & zmq.POLLIN)

    def _take_requests(self) -> None:
        """Reads a few requests: a peer that sends faster than they can be read must not delay others."""
        assert self._router is not None
        for _ in range(_REQUESTS_PER_TURN):
            if len(self._replays) >= MAX_REPLAYS or not self._has_requests():
                return
            reader, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(frames) != 2 or len(frames[0].bytes) or len(frames[1].bytes) != 8:
                log.debug("an invalid request to replay cache events: %d frames", len(frames))
                continue
            batches = self._feed.buffered(
                int.from_bytes(frames[1].bytes, "big"), self._config.buffer_steps
            )
            is_single = frames[1].get("Socket-Type") == "REQ"
            self._replays[reader.bytes] = _Replay(batches, is_single, self._loop.time())

    def _advance(self, reader: bytes, replay: _Replay) -> bool:
        """Sends some of the remaining batches; True if the reader has no room for more."""
        assert self._router is not None
        try:
            for _ in range(_BATCHES_PER_TURN):
                message = replay.unsent or self._next_message(replay)
                if message is not None:
                    replay.unsent = message
                    self._router.send_multipart([reader, b"", *message], zmq.NOBLOCK)
                    replay.unsent, replay.moved_at = None, self._loop.time()
                    if message is _END or replay.is_single:
                        del self._replays[reader]
                        break
        except zmq.Again:
            if self._loop.time() - replay.moved_at > _STALLED_MS / 1e3:
                del self._replays[reader]
            return True
        except zmq.ZMQError as error:  # the reader has disconnected
            log.debug("a replay of cache events ended: %s", error)
            del self._replays[reader]
        return False

    def _next_message(self, replay: _Replay) -> tuple[bytes, bytes] | None:
        """Returns the next message; None while batches are still being merged into one message."""
        batch = next(replay.batches, None)
        if not replay.is_single:
            return _END if batch is None else self._message(batch)
        if batch is not None:
            replay.last = batch
            replay.events += map(self._encoded, batch.events)
            return None
        return _END if replay.last is None else self._message(replay.last, replay.events)

    # -- messages -----------------------------------------------------------------------------

    def _message(
        self, batch: KvEventBatch, encoded: list[msgspec.Raw] | None = None
    ) -> tuple[bytes, bytes]:
        """Returns number and payload of a batch; `encoded` replaces the batch's own events."""
        events = [*map(self._encoded, batch.events)] if encoded is None else encoded
        payload = self._encoder.encode((batch.timestamp, events, self._rank))
        return batch.sequence_number.to_bytes(8, "big"), payload

    def _encoded(self, event: KvEvent) -> msgspec.Raw:
        return msgspec.Raw(self._encoder.encode(self._to_wire(event)))

    def _to_wire(self, event: KvEvent) -> _Stored | _Removed | _Cleared:
        match event:
            case BlockStored():
                parent, salt = event.parent_block_hash, event.cache_salt
                # Only the first block of a chain carries the salt; later blocks inherit it from their parent.
                rest = [None] * (len(event.block_hashes) - 1)
                return _Stored(
                    [*map(self._to_hash, event.block_hashes)],
                    None if parent is None else self._to_hash(parent),
                    event.token_ids,
                    event.block_size,
                    medium=event.medium,
                    lora_name=event.lora_name,
                    extra_keys=[(salt,), *rest] if salt is not None and parent is None else None,
                )
            case BlockRemoved():
                return _Removed([*map(self._to_hash, event.block_hashes)], medium=event.medium)
            case AllBlocksCleared():
                return _Cleared()
            case _ as unreachable:
                assert_never(unreachable)


class KvEventStream:
    """The event stream of one of several ranks. The stream outlives the engines of the rank, and its sequence
    numbers continue after a restart. So a subscriber misses no event when an engine dies, the loss of the cache
    included.
    """

    def __init__(self, config: KvEventsConfig, rank: int) -> None:
        self._rank = rank
        self._feed = KvEventFeed(max(MAX_BUFFERED_BATCHES, config.buffer_steps))
        self._publisher = KvPublisher(config, self._feed, rank)

    def publish(self, events: list[KvEvent]) -> None:
        """Sends the events as the next batch; never waits."""
        self._publisher.publish(self._feed.publish_next(events, self._rank))

    def close(self) -> None:
        self._publisher.close()


def _to_int(block_hash: bytes) -> int:
    """Returns the low 64 bits as an unsigned integer."""
    return int.from_bytes(block_hash[-8:], "big")
