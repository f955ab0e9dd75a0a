"""Events of an engine's prefix cache as values, and their msgpack form, map- or array-shaped."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from weft.core.prompts import pack_tokens
from weft.epp.prefix.keys import Extra

DEFAULT_TIER: Final = "gpu"
_MASK: Final = (1 << 64) - 1

_STORED_FIELDS: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx",
)  # fmt: skip
_REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")
# Events may be arrays, in which a place means what the engine says it does.
_PLACES: Final = {
    "vllm": {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS},
    "sglang": {"BlockStored": _STORED_FIELDS[:6], "BlockRemoved": _REMOVED_FIELDS[:2]},
}


class Malformed(Exception):
    """A message that is not what engines send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks that were computed or loaded, in the order of their tokens."""

    hashes: Sequence[int]  # opaque: the engine's own
    parent: int | None
    tokens: bytes  # little-endian uint32
    block_size: int
    tier: str = DEFAULT_TIER
    group: int | None = None
    lora_name: str | None = None
    extras: Sequence[Extra | None] = ()  # by block; empty: none has any


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks that were dropped."""

    hashes: Sequence[int]
    tier: str = DEFAULT_TIER
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every block was dropped."""


Event = Stored | Removed | Cleared


def decode_batch(payload: bytes, engine: str = "vllm") -> list[Event]:
    """The events of one message of such an engine; raises `Malformed`."""
    places = _PLACES[engine]
    try:
        batch = msgspec.msgpack.decode(payload)
        events = batch["events"] if isinstance(batch, dict) else batch[1]
        return [event for item in events if (event := _decode(item, places)) is not None]
    except (
        msgspec.DecodeError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        struct.error,
    ) as error:
        raise Malformed(str(error)) from error


def block_hash(value: object) -> int:
    """An engine's hash as 64 bits: ints as they are, the low 64 bits of bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _MASK
    raise Malformed(f"a block hash must be an int or bytes, got {type(value).__name__}")


def tier_of(medium: object) -> str:
    """The tier a medium names; engines that do not say mean the device."""
    return medium.lower() if isinstance(medium, str) and medium else DEFAULT_TIER


def _decode(item: Any, places: Mapping[str, tuple[str, ...]]) -> Event | None:
    if isinstance(item, dict):
        kind, fields = item.get("type"), item
    else:
        kind = item[0]
        # Newer engines append fields, older ones leave the last ones out.
        fields = dict(zip(places.get(kind, ()), item[1:], strict=False))
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return Removed(
                hashes=[block_hash(each) for each in fields["block_hashes"]],
                tier=tier_of(fields.get("medium")),
                group=fields.get("group_idx"),
            )
        case "AllBlocksCleared":
            return Cleared()
        case str():
            return None  # a kind from the future says nothing about blocks we know of
        case _:
            raise Malformed("an event has no type")


def _stored(fields: dict[str, Any]) -> Stored:
    hashes = [block_hash(each) for each in fields["block_hashes"]]
    parent, block_size = fields.get("parent_block_hash"), fields["block_size"]
    tokens = pack_tokens(fields["token_ids"])
    if not isinstance(block_size, int) or block_size < 1:
        raise Malformed("block_size must be a positive integer")
    if len(tokens) != 4 * block_size * len(hashes):
        raise Malformed("token_ids do not fill the blocks")
    lora_name = fields.get("lora_name")
    return Stored(
        hashes=hashes,
        parent=None if parent is None else block_hash(parent),
        tokens=tokens,
        block_size=block_size,
        tier=tier_of(fields.get("medium")),
        group=fields.get("group_idx"),
        lora_name=lora_name if isinstance(lora_name, str) else None,
        extras=[_extra(each, lora_name) for each in fields.get("extra_keys") or ()],
    )


def _extra(keys: Any, lora_name: object) -> Extra | None:
    """What besides tokens makes a block its own; the adapter is in the chain's root already."""
    kept: list[str | int] = []
    for key in keys or ():
        if isinstance(key, str | int):
            if key != lora_name:
                kept.append(key)
        else:  # (media hash, offset)
            kept += [str(part) if isinstance(part, bytes) else part for part in key]
    return kept or None
