"""Hash chains of blocks: each hash covers all tokens up to the block's end, and the root isolates cache users."""

import hashlib
from array import array
from collections.abc import Sequence as Seq
from functools import lru_cache


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


def block_hash(parent: bytes, token_ids: Seq[int]) -> bytes:
    """Hashes one full block: its 32-byte parent, then its tokens as 4 bytes each."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()
