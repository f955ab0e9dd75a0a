"""`KvEventReader`: receives the prefix-cache events of vLLM's ranks over ZeroMQ, and publishes them in one feed."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from weft.core.errors import ConfigError
from weft.core.observe.kv_feed import KvEventFeed
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    Medium,
)

log = logging.getLogger("weft.engine")

_LOOPBACK = "tcp://127.0.0.1"
_MAX_MESSAGE_BYTES = 64 << 20
_HWM = 100_000  # maximum number of batches that wait to be read, as in vLLM's publisher
_MAX_TRIES = 20  # attempts to find as many consecutive free ports as there are ranks


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None = None
    medium: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(_Batch)


class KvEventReader:
    """Subscriber of the cache events of all ranks. It exists before vLLM's engine, whose publishers connect to it on
    loopback; so vLLM opens no port for its events.

    The feed numbers the batches of all ranks anew. If batches of a rank are missing, the feed says that the rank's
    cache is empty: a block that is wrongly missing costs a cache miss, but a block that no longer exists would mislead
    routers.
    """

    def __init__(self, num_ranks: int) -> None:
        self.feed = KvEventFeed()
        self._num_published = 0
        self._last: dict[int, int] = {}  # last sequence number, by rank
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, _HWM)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.subscribe(b"")
        self._port = _bind(self._socket, num_ranks)

    @property
    def settings(self) -> dict[str, object]:
        """Settings for vLLM's event publisher. Rank r publishes to the port of the endpoint plus r."""
        endpoint = f"{_LOOPBACK}:{self._port}"
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}

    async def run(self) -> None:
        """Receives events and publishes them until the task is cancelled."""
        while True:
            self._take(await self._socket.recv_multipart())

    def _take(self, frames: Sequence[bytes]) -> None:
        """Handles a message of topic, sequence number and batch. A batch that cannot be read counts as missing."""
        try:
            _topic, number, payload = frames
            batch = _decoder.decode(payload)
        except ValueError as error:  # includes msgspec's exceptions
            log.warning("a prefix-cache event could not be read: %s", error)
            return
        rank, sequence = batch.data_parallel_rank or 0, int.from_bytes(number, "big")
        events = [value for event in batch.events if (value := to_event(event)) is not None]
        if self._last.get(rank, sequence - 1) != sequence - 1:
            log.warning(
                "prefix-cache events of rank %d are missing; its prefix cache counts as empty", rank
            )
            events.insert(0, AllBlocksCleared())
        self._last[rank] = sequence
        if events:
            self.feed.publish(
                KvEventBatch(
                    sequence_number=self._num_published,
                    timestamp=batch.ts,
                    events=events,
                    data_parallel_rank=rank,
                )
            )
            self._num_published += 1

    def close(self) -> None:
        """Closes the sockets. May be called more than once."""
        self._context.destroy(linger=0)


def to_event(event: _Stored | _Removed | _Cleared) -> KvEvent | None:
    """Converts an event of vLLM. Returns None for an event about another block group, or about another medium than the
    KV pool.
    """
    if isinstance(event, _Cleared):
        return AllBlocksCleared()
    if event.medium not in (None, Medium.POOL) or event.group_idx not in (None, 0):
        return None
    hashes = [_to_bytes(block_hash) for block_hash in event.block_hashes]
    if isinstance(event, _Removed):
        return BlockRemoved(block_hashes=hashes)
    parent = event.parent_block_hash
    media = [_media(keys) for keys in event.extra_keys or ()]
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if parent is None else _to_bytes(parent),
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_name=event.lora_name,
        cache_salt=_salt(event),
        media=media if any(media) else [],
    )


def _salt(event: _Stored) -> str | None:
    """Returns the cache salt: the string among the first block's extra keys that is not the adapter's name. Extra keys
    of media are pairs.
    """
    keys = (event.extra_keys or [None])[0] or []
    texts = [key for key in keys if isinstance(key, str) and key != event.lora_name]
    return texts[0] if texts else None


def _media(keys: list[Any] | None) -> list[tuple[str, int]]:
    """Returns the media items in a block's extra keys: each is a pair of the item's hash and its start position."""
    return [(str(key[0]), int(key[1])) for key in keys or () if isinstance(key, list | tuple)]


def _to_bytes(block_hash: int | bytes) -> bytes:
    if isinstance(block_hash, bytes):
        return block_hash
    return (block_hash & (2**64 - 1)).to_bytes(8, "big")


def _bind(socket: "zmq.asyncio.Socket", num_ranks: int) -> int:
    """Binds the socket to as many consecutive free ports as there are ranks; returns the first port."""
    for _ in range(_MAX_TRIES):
        first: int = socket.bind_to_random_port(_LOOPBACK)
        bound = [first]
        try:
            for port in range(first + 1, first + num_ranks):
                socket.bind(f"{_LOOPBACK}:{port}")
                bound.append(port)
        except zmq.ZMQError:
            for port in bound:
                socket.unbind(f"{_LOOPBACK}:{port}")
        else:
            return first
    raise ConfigError(f"cannot find {num_ranks} consecutive free ports for prefix-cache events")
