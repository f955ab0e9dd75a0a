"""Blocks of a sequence in the form of cache events."""

from weft.core.values.kv_cache import BlockStored
from weft.engine.scheduling.block_hashes import items_in
from weft.engine.scheduling.sequence import Sequence


def stored_blocks(sequence: Sequence, first: int, end: int, size: int) -> BlockStored:
    """Returns the event for the blocks `first` to `end` of a sequence."""
    media: list[list[tuple[str, int]]] = []
    if items := sequence.request.items:
        media = [items_in(items, b * size, (b + 1) * size) for b in range(first, end)]
    return BlockStored(
        block_hashes=sequence.block_hashes[first:end],
        parent_block_hash=sequence.block_hashes[first - 1] if first else None,
        token_ids=sequence.token_ids[first * size : end * size],
        block_size=size,
        lora_name=sequence.request.lora_name,
        cache_salt=sequence.request.cache_salt,
        media=media if any(media) else [],
    )
