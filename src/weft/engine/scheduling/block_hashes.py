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
    """Returns the parent of a chain's first block: a digest of every value that isolates one cache user from
    another.
    """
    digest = hashlib.sha256(b"weft-kv-1")
    digest.update(block_size.to_bytes(8, "big") + weights_epoch.to_bytes(8, "big"))
    for tag, text in ((b"lora", lora_name), (b"salt", cache_salt)):
        raw = b"" if text is None else text.encode()
        digest.update(tag + bytes([text is not None]) + len(raw).to_bytes(8, "big") + raw)
    digest.update(lora_generation.to_bytes(8, "big") + process_nonce)
    return digest.digest()


def block_hash(parent: bytes, token_ids: Seq[int], items: Seq[tuple[str, int]] = ()) -> bytes:
    """Hashes one full block: its 32-byte parent, its tokens as 4 bytes each, and the pictures that have tokens in the
    block. `items` has each picture's hash and the index of its first token, relative to the block's first token.
    """
    digest = hashlib.sha256(parent + array("I", token_ids).tobytes())
    for name, begin in items:
        raw = name.encode()
        digest.update(
            b"item" + len(raw).to_bytes(8, "big") + raw + begin.to_bytes(8, "big", signed=True)
        )
    return digest.digest()


def items_in(items: Seq[PlacedItem], start: int, end: int) -> list[tuple[str, int]]:
    """Returns the pictures that have tokens in `start` to `end`: each picture's hash, and its first token's index minus
    `start`.
    """
    return [(i.hash, i.start - start) for i in items if i.start < end and start < i.end]
