"""`PrefixIndex`: the content of one engine's prefix cache as its events report it, looked up by prompt.

A block's key is made of its tokens and its parent's key; a chain starts with adapter and salt. The engine's own
hashes cannot be used: they depend on when it loaded an adapter or weights, so they differ between engines. Keys
only decide which engine computes a request: a collision of keys costs time, but reveals no other request's data.
"""

from collections.abc import Iterable, Sequence

from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium
from weft.core.values.types import Request

# Longer prefixes are not looked up: a lookup takes some microseconds a block on the event loop.
MAX_BLOCKS = 4096
_SHORT = 8  # bytes of an engine's hash that are kept


class PrefixIndex:
    """Index of one engine's cached blocks, for as long as the engine lives."""

    def __init__(self) -> None:
        self._hash_by_key: dict[int, int] = {}
        self._key_by_hash: dict[int, int] = {}
        # A block may lie in the pool and in the second tier.
        self._held: set[tuple[int, Medium]] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._hash_by_key

    def take(self, events: Iterable[KvEvent]) -> None:
        """Applies cache events."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.clear()

    def clear(self) -> None:
        """Forgets all blocks."""
        self._hash_by_key.clear()
        self._key_by_hash.clear()
        self._held.clear()

    def _store(self, event: BlockStored) -> None:
        if event.parent_block_hash is None:
            key: int | None = _root(event.lora_name, event.cache_salt)
        else:
            key = self._key_by_hash.get(_short(event.parent_block_hash))
        if key is None:  # the parent was removed meanwhile: no lookup reaches this block
            return
        for place, block_hash in enumerate(event.block_hashes):
            start = place * event.block_size
            key = _next(key, event.token_ids[start : start + event.block_size])
            short = _short(block_hash)
            self._hash_by_key[key], self._key_by_hash[short] = short, key
            self._held.add((short, event.medium))

    def _remove(self, event: BlockRemoved) -> None:
        for short in map(_short, event.block_hashes):
            self._held.discard((short, event.medium))
            if any((short, medium) in self._held for medium in Medium):
                continue
            key = self._key_by_hash.pop(short, None)
            # Blocks of an adapter that was loaded again have the same key and another hash.
            if key is not None and self._hash_by_key.get(key) == short:
                del self._hash_by_key[key]


def cached_tokens(request: Request, block_size: int, indexes: Sequence[PrefixIndex]) -> list[int]:
    """Returns for each engine the number of prompt tokens that its cache holds."""
    counts = [0] * len(indexes)
    token_ids = request.prompt_token_ids
    key = _root(request.lora_name, request.cache_salt)
    matching = list(enumerate(indexes))
    # The last token is always computed, for its logits.
    for block in range(min(MAX_BLOCKS, (len(token_ids) - 1) // block_size)):
        start = block * block_size
        key = _next(key, token_ids[start : start + block_size])
        matching = [(place, index) for place, index in matching if key in index]
        if not matching:
            break
        for place, _ in matching:
            counts[place] += block_size
    return counts


def _root(lora_name: str | None, cache_salt: str | None) -> int:
    return hash((lora_name, cache_salt))


def _next(parent: int, token_ids: Sequence[int]) -> int:
    return hash((parent, *token_ids))


def _short(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[:_SHORT], "big")
