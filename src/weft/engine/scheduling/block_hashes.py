"""Hash chains of blocks: each hash covers all tokens up to the block's end, and the root isolates cache users."""

import hashlib
from array import array
from collections.abc import Sequence as Seq
from functools import lru_cache

from weft.core.values.pictures import PlacedItem


@lru_cache(maxsize=256)
def chain_root(
    *,
    block_size: int,
    weights_epoch: int,
    lora_name: str | None = None,
    lora_generation: int = 0,
    cache_salt: str | None = None,
    process_nonce: bytes = b"",
) -> bytes:
    """Returns the parent of a chain's first block: a digest of all that isolates one cache user from another."""
    digest = hashlib.sha256(b"weft-kv-1")
    digest.update(block_size.to_bytes(8, "big") + weights_epoch.to_bytes(8, "big"))
    for tag, text in ((b"lora", lora_name), (b"salt", cache_salt)):
        raw = b"" if text is None else text.encode()
        digest.update(tag + bytes([text is not None]) + len(raw).to_bytes(8, "big") + raw)
    digest.update(lora_generation.to_bytes(8, "big") + process_nonce)
    return digest.digest()


def block_hash(parent: bytes, token_ids: Seq[int], items: Seq[tuple[str, int]] = ()) -> bytes:
    """Hashes one full block: its 32-byte parent, its tokens as 4 bytes each, and the `items` with tokens in it: the
    hash of each, and its begin, counted from the block's first token.
    """
    digest = hashlib.sha256(parent + array("I", token_ids).tobytes())
    for name, begin in items:
        raw = name.encode()
        digest.update(
            b"item" + len(raw).to_bytes(8, "big") + raw + begin.to_bytes(8, "big", signed=True)
        )
    return digest.digest()


def items_in(items: Seq[PlacedItem], start: int, end: int) -> list[tuple[str, int]]:
    """Returns the items with tokens from `start` to `end`: the hash of each, and its begin, counted from `start`."""
    return [(i.hash, i.start - start) for i in items if i.start < end and start < i.end]
