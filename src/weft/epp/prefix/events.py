"""Prefix-cache events of an engine, decoded from msgpack maps or arrays.

Only the needed fields are decoded, one by one: a message may contain any values, and one byte may become an object of
fifty bytes. An event with many blocks is split, so that other tasks get a turn.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec

from weft.core.values.prompts import pack_tokens
from weft.epp.prefix.keys import Extra

DEFAULT_TIER: Final = "gpu"
# A step of 100,000 tokens takes half of this.
MAX_BATCH_BYTES: Final = 2**20
_MAX_EVENTS: Final = 2**16
MAX_BLOCKS: Final = 512  # per event
MAX_BLOCK_SIZE: Final = 2**13  # per event
_MAX_EXTRA_BYTES: Final = 2**14
_MASK: Final = (1 << 64) - 1
T = TypeVar("T")

_STORED_FIELDS: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx",
)  # fmt: skip
_REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")
# Events may be arrays; the engine defines the meaning of each position.
_PLACES: Final = {
    "vllm": {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS},
    "sglang": {"BlockStored": _STORED_FIELDS[:6], "BlockRemoved": _REMOVED_FIELDS[:2]},
}


class Malformed(Exception):
    """Error: a message does not have the form of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Event: blocks were computed or loaded, in the order of their tokens."""

    hashes: Sequence[int]  # opaque hashes of the engine
    parent: int | None
    tokens: bytes  # as little-endian uint32
    block_size: int
    tier: str = DEFAULT_TIER
    group: int | None = None
    lora_name: str | None = None
    extras: Sequence[Extra | None] = ()  # one entry per block; empty if no block has extra keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Event: blocks were dropped."""

    hashes: Sequence[int]
    tier: str = DEFAULT_TIER
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Event: all blocks were dropped."""


Event = Stored | Removed | Cleared


class _ArrayBatch(msgspec.Struct, array_like=True):
    time: msgspec.Raw
    events: msgspec.Raw


class _MapBatch(msgspec.Struct):
    events: msgspec.Raw


class _ArrayEvent(msgspec.Struct, array_like=True):
    """The fields of an event in array form after its type. Newer engines append fields; older engines lack the last
    ones.
    """

    type: str
    p0: msgspec.Raw = msgspec.Raw()
    p1: msgspec.Raw = msgspec.Raw()
    p2: msgspec.Raw = msgspec.Raw()
    p3: msgspec.Raw = msgspec.Raw()
    p4: msgspec.Raw = msgspec.Raw()
    p5: msgspec.Raw = msgspec.Raw()
    p6: msgspec.Raw = msgspec.Raw()
    p7: msgspec.Raw = msgspec.Raw()
    p8: msgspec.Raw = msgspec.Raw()

    def fields(self, places: Mapping[str, tuple[str, ...]]) -> "_Fields":
        _, *values = msgspec.structs.astuple(self)
        given = dict(zip(places.get(self.type, ()), values, strict=False))
        return _Fields(**given)


class _Fields(msgspec.Struct, frozen=True):
    """The fields of an event that the picker reads; all others are ignored."""

    block_hashes: msgspec.Raw = msgspec.Raw()
    parent_block_hash: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    block_size: msgspec.Raw = msgspec.Raw()
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: msgspec.Raw = msgspec.Raw()
    lora_name: msgspec.Raw = msgspec.Raw()
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: msgspec.Raw = msgspec.Raw()


class _MapEvent(_Fields, frozen=True, kw_only=True):
    type: str

    def fields(self, _places: Mapping[str, tuple[str, ...]]) -> _Fields:
        return self


def _decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    return msgspec.msgpack.Decoder(kind)


_array_batch, _map_batch = _decoder(_ArrayBatch), _decoder(_MapBatch)
_array_event, _map_event = _decoder(_ArrayEvent), _decoder(_MapEvent)
_hashes = _decoder(list[int | bytes])
_hash = msgspec.msgpack.Decoder(int | bytes | None)
_tokens = _decoder(list[int])
_block_size = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_SIZE)])
_group = msgspec.msgpack.Decoder(int | None)
_any = _decoder(Any)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw] | None)


def decode_batch(payload: bytes, engine: str = "vllm") -> Iterator[Event]:
    """Yields the events of one message. Raises `Malformed`."""
    places = _PLACES[engine]
    try:
        if len(payload) > MAX_BATCH_BYTES:
            raise Malformed(f"a message has {len(payload)} bytes, more than {MAX_BATCH_BYTES}")
        batch = (_map_batch if _is_map(payload) else _array_batch).decode(payload)
        for raw in _items(batch.events, _MAX_EVENTS):
            item = (_map_event if _is_map(raw) else _array_event).decode(raw)
            yield from _decode(item.type, item.fields(places))
    except (msgspec.DecodeError, ValueError, TypeError, struct.error, RecursionError) as error:
        raise Malformed(str(error)) from error


def block_hash(value: object) -> int:
    """Converts an engine's block hash to 64 bits: an int is unchanged; of bytes, the low 64 bits are used."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _MASK
    raise Malformed(f"a block hash must be an int or bytes, got {type(value).__name__}")


def tier_of(medium: object) -> str:
    """Returns the cache tier of a storage medium; without a medium, the device's tier."""
    return medium.lower() if isinstance(medium, str) and medium else DEFAULT_TIER


def _decode(kind: str, fields: _Fields) -> Iterator[Event]:
    match kind:
        case "BlockStored":
            yield from _stored(fields)
        case "BlockRemoved":
            tier, group = tier_of(_text(fields.medium)), _read(_group, fields.group_idx)
            yield from removals(_hashes.decode(fields.block_hashes), tier, group)
        case "AllBlocksCleared":
            yield Cleared()
        case _:
            pass  # an unknown kind of event, of a newer engine: no effect on known blocks


def removals(hashes: Sequence[int | bytes], tier: str, group: int | None) -> Iterator[Removed]:
    """Yields removals of at most a fixed number of blocks each."""
    for start in range(0, len(hashes), MAX_BLOCKS):
        some = [block_hash(each) for each in hashes[start : start + MAX_BLOCKS]]
        yield Removed(hashes=some, tier=tier, group=group)


def _stored(fields: _Fields) -> Iterator[Stored]:
    hashes, tokens = _hashes.decode(fields.block_hashes), _tokens.decode(fields.token_ids)
    block_size = _block_size.decode(fields.block_size)
    if len(tokens) != block_size * len(hashes):
        raise Malformed("token_ids do not fill the blocks")
    parent = _read(_hash, fields.parent_block_hash)
    tier, group = tier_of(_text(fields.medium)), _read(_group, fields.group_idx)
    lora_name = _text(fields.lora_name)
    extras = _items(fields.extra_keys, len(hashes))
    num_blocks = min(MAX_BLOCKS, MAX_BLOCK_SIZE // block_size)
    for start in range(0, len(hashes), num_blocks):
        end = start + num_blocks
        yield Stored(
            hashes=list(map(block_hash, hashes[start:end])),
            parent=None if parent is None else block_hash(parent),
            tokens=pack_tokens(tokens[start * block_size : end * block_size]),
            block_size=block_size,
            tier=tier,
            group=group,
            lora_name=lora_name,
            extras=[_extra(_small(each), lora_name) for each in extras[start:end]],
        )
        parent = hashes[end - 1] if end <= len(hashes) else None


def _read(decoder: "msgspec.msgpack.Decoder[T]", raw: msgspec.Raw) -> T | None:
    return decoder.decode(raw) if memoryview(raw) else None


def _small(raw: msgspec.Raw) -> Any:
    """Decodes a value of any type. Raises `Malformed` if its encoding is too long."""
    if len(memoryview(raw)) > _MAX_EXTRA_BYTES:
        raise Malformed("a value is too long")
    return _read(_any, raw)


def _text(raw: msgspec.Raw) -> str | None:
    value = _small(raw)
    return value if isinstance(value, str) else None


def _is_map(message: bytes | msgspec.Raw) -> bool:
    first = bytes(memoryview(message)[:1])
    return b"\x80" <= first <= b"\x8f" or first in {b"\xde", b"\xdf"}


def _items(raw: msgspec.Raw, most: int) -> Sequence[msgspec.Raw]:
    """Returns the items of an array; none for nil. Raises `Malformed`, before the items become objects, if there are
    more than `most`.
    """
    head = bytes(memoryview(raw)[:5])
    width = {b"\xdc": 2, b"\xdd": 4}.get(head[:1], 0)
    if int.from_bytes(head[1 : 1 + width], "big") > most:
        raise Malformed(f"an array has more than {most} items")
    return _read(_raws, raw) or []


def _extra(keys: Any, lora_name: object) -> Extra | None:
    """Returns the extra keys of a block: what distinguishes it besides its tokens. The adapter is left out, because the
    root of the key chain includes it.
    """
    extra: list[str | int | None] = []
    for key in keys or ():
        if isinstance(key, str | int):
            if key != lora_name:
                extra.append(key)
        else:  # (media hash, offset)
            extra += [part if isinstance(part, str | int | None) else str(part) for part in key]
    return extra or None
