"""Keys of both prefix indexes: the key of a block is a hash of its parent's key, its tokens and its extra keys.

The precise index has two algorithms: FNV-64a over canonical CBOR of [parent, tokens, extra], and XXH64 over
fixed-width bytes. The approximate index uses XXH64 over the hashes of blocks.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from sys import byteorder
from typing import Final, Protocol

import xxhash

FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = (1 << 64) - 1
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

Extra = Sequence[str | int | None]


def fnv64a(data: bytes, state: int = FNV_OFFSET) -> int:
    """Returns the 64-bit FNV-1a hash of `data`."""
    for byte in data:
        state = (state ^ byte) * _FNV_PRIME & _MASK
    return state


def cbor_head(major: int, value: int) -> bytes:
    """Returns the shortest head of a CBOR item: its major type, and its number or length."""
    kind = major << 5
    if value < 24:
        return bytes((kind | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * width:
            return bytes((kind | code,)) + value.to_bytes(width, "big")
    raise OverflowError(value)


def cbor(value: object) -> bytes:
    """Returns the canonical CBOR encoding of None, ints, text, bytes and lists of them."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return cbor_head(0, value) if value >= 0 else cbor_head(1, -1 - value)
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            return cbor_head(3, len(raw)) + raw
        case bytes():
            return cbor_head(2, len(value)) + value
        case list() | tuple():
            return cbor_head(4, len(value)) + b"".join(map(cbor, value))
        case _:
            raise TypeError(f"no CBOR for {type(value).__name__}")


class KeyAlgorithm(Protocol):
    """An algorithm that computes block keys."""

    def root(self, model: str) -> int:
        """Returns the parent key of a prompt's first block."""

    def block(self, parent: int, tokens: bytes, extra: Extra | None) -> int:
        """Returns the key of one full block; `tokens` are little-endian uint32."""


class FnvKeys:
    """Block keys by FNV-64a over canonical CBOR."""

    def __init__(self, seed: str) -> None:
        self._seed = fnv64a(seed.encode())

    def root(self, model: str) -> int:
        """Returns the first key of a chain: the hash of the seed, no tokens, and the model's name as the extra key."""
        return fnv64a(cbor([self._seed, None, model]))

    def block(self, parent: int, tokens: bytes, extra: Extra | None) -> int:
        """Returns the hash of [parent, tokens, extra]."""
        ids = array("I", tokens)
        if byteorder == "big":
            ids.byteswap()
        parts = [b"\x83", cbor_head(0, parent), cbor_head(4, len(ids))]
        parts += [cbor_head(0, token) for token in ids]
        parts.append(cbor(None if extra is None else list(extra)))
        return fnv64a(b"".join(parts))


class XxhKeys:
    """Block keys by XXH64 over the parent key, the tokens, and each extra key after its length."""

    def __init__(self, seed: str) -> None:
        self._seed = fnv64a(seed.encode())

    def root(self, model: str) -> int:
        """Returns the first key of a chain: the hash of the seed, no tokens, and the model's name as the extra key."""
        return self.block(self._seed, b"", (model,))

    def block(self, parent: int, tokens: bytes, extra: Extra | None) -> int:
        """Returns the hash of the parent key, the tokens and the extra keys."""
        data = _U64.pack(parent) + tokens
        for item in extra or ():
            raw = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else cbor(item)
            data += _U64.pack(len(raw)) + raw
        return xxhash.xxh64_intdigest(data)


def make_keys(algorithm: str, seed: str) -> KeyAlgorithm:
    """Returns the algorithm that the configuration names."""
    return FnvKeys(seed) if algorithm == "cbor-fnv" else XxhKeys(seed)


def chain_keys(
    keys: KeyAlgorithm, tokens: bytes, *, block_size: int, parent: int, first_extra: Extra | None
) -> list[int]:
    """Returns the keys of the full blocks of `tokens`. `first_extra` is the extra key of the first block."""
    return list(
        iter_keys(keys, tokens, block_size=block_size, parent=parent, first_extra=first_extra)
    )


def iter_keys(
    keys: KeyAlgorithm, tokens: bytes, *, block_size: int, parent: int, first_extra: Extra | None
) -> Iterator[int]:
    """Yields the keys of the full blocks one by one, for callers that must not compute all at once."""
    width = 4 * block_size
    block, extra = keys.block, first_extra
    for end in range(width, len(tokens) + 1, width):
        parent = block(parent, tokens[end - width : end], extra)
        yield parent
        extra = None


def chain_hashes(
    tokens: bytes, *, block_size: int, max_blocks: int, model: str, cache_salt: str
) -> list[int]:
    """Returns the hashes for the approximate index: one per block of four-byte tokens, including an incomplete last
    block.
    """
    digest = xxhash.xxh64_intdigest
    pack = _PAIR.pack
    width = 4 * block_size
    parent = digest(model.encode() + cache_salt.encode())
    hashes = []
    for start in islice(range(0, len(tokens), width), max_blocks):
        parent = digest(pack(digest(tokens[start : start + width]), parent))
        hashes.append(parent)
    return hashes
