"""Chained hashes of a prompt's blocks, as the approximate prefix cache keys them."""

from itertools import islice
from struct import Struct

import xxhash

_PAIR = Struct("<QQ")


def chain_hashes(
    tokens: bytes, *, block_size: int, max_blocks: int, model: str, cache_salt: str
) -> list[int]:
    """One hash per block of `block_size` tokens of four bytes; the last, partial block has one too."""
    digest = xxhash.xxh64_intdigest
    pack = _PAIR.pack
    width = 4 * block_size
    parent = digest(model.encode() + cache_salt.encode())
    hashes = []
    for start in islice(range(0, len(tokens), width), max_blocks):
        parent = digest(pack(digest(tokens[start : start + width]), parent))
        hashes.append(parent)
    return hashes
