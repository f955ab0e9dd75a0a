"""The prefix cache: finds blocks whose content a new sequence would only compute again.

Blocks are found by a chain of hashes (`core.hashing`). A block is registered when it is planned, before
its content is computed: sequences of the same step may share it, because a step writes all K/V of a
layer before any row attends to it.
"""

from collections.abc import Sequence as Seq

from weft.core.hashing import block_hash, chain_root
from weft.core.types import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from weft.engine.scheduling.blocks import BlockPool
from weft.engine.scheduling.sequence import Sequence


class PrefixCache:
    """Blocks by the hash of all tokens up to their end. Several blocks may have one hash."""

    def __init__(self, num_blocks: int, block_size: int, *, is_enabled: bool = True) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, self._forget)
        self._is_enabled = is_enabled
        self._weights_epoch = 0
        self._blocks_by_hash: dict[bytes, list[int]] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self._events: list[KvEvent] = []

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by hash."""
        return len(self._hash_by_block)

    def extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        """Make `sequence.block_hashes` cover its first `num_blocks` blocks, all full."""
        hashes = sequence.block_hashes
        size = self.block_size
        while self._is_enabled and len(hashes) < num_blocks:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else self._root(sequence)
            hashes.append(block_hash(parent, sequence.token_ids[start : start + size]))

    def find(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that begins the sequence, at least one token left out:
        the last token must be computed, for its logits."""
        if not self._is_enabled or sequence.skips_cache_read:
            return []
        num_full = (sequence.num_tokens - 1) // self.block_size
        self.extend_hashes(sequence, num_full)
        found: list[int] = []
        for digest in sequence.block_hashes[:num_full]:
            blocks = self._blocks_by_hash.get(digest)
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the blocks that the first `num_tokens` tokens fill findable."""
        num_full = num_tokens // self.block_size
        first = sequence.num_registered_blocks
        if not self._is_enabled or num_full <= first:
            return
        self.extend_hashes(sequence, num_full)
        for index in range(first, num_full):
            block_id, digest = sequence.block_ids[index], sequence.block_hashes[index]
            self._hash_by_block[block_id] = digest
            self._blocks_by_hash.setdefault(digest, []).append(block_id)
            self.pool.label(block_id)
        sequence.num_registered_blocks = num_full
        self._record_stored(sequence, first, num_full)

    def distrust(self, block_ids: Seq[int]) -> None:
        """Make these blocks unfindable: their content is not to be relied on."""
        for block_id in block_ids:
            self.pool.unlabel(block_id)

    def clear(self) -> None:
        """Make every block unfindable. Held blocks keep their content for their holders."""
        self._blocks_by_hash.clear()
        self._hash_by_block.clear()
        self.pool.unlabel_all()
        self._events.append(AllBlocksCleared())

    def start_weights_epoch(self) -> None:
        """The weights have changed: nothing computed so far is found from now on."""
        self._weights_epoch += 1
        self.clear()

    def take_events(self) -> list[KvEvent]:
        """What changed since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Assert what must always hold. Dear; for tests."""
        self.pool.check()
        listed = {b: h for h, blocks in self._blocks_by_hash.items() for b in blocks}
        assert listed == self._hash_by_block
        assert all(self._blocks_by_hash.values()), "an empty list of blocks is kept"

    def _root(self, sequence: Sequence) -> bytes:
        request = sequence.request
        return chain_root(
            block_size=self.block_size,
            weights_epoch=self._weights_epoch,
            lora_name=request.lora_name,
            lora_generation=request.lora_id or 0,  # a new one each time an adapter is loaded
            cache_salt=request.cache_salt,
        )

    def _forget(self, block_id: int) -> None:
        digest = self._hash_by_block.pop(block_id)
        blocks = self._blocks_by_hash[digest]
        blocks.remove(block_id)
        if not blocks:
            del self._blocks_by_hash[digest]
            self._events.append(BlockRemoved(block_hashes=[digest]))

    def _record_stored(self, sequence: Sequence, first: int, end: int) -> None:
        size = self.block_size
        self._events.append(
            BlockStored(
                block_hashes=sequence.block_hashes[first:end],
                parent_block_hash=sequence.block_hashes[first - 1] if first else None,
                token_ids=sequence.token_ids[first * size : end * size],
                block_size=size,
                lora_name=sequence.request.lora_name,
                cache_salt=sequence.request.cache_salt,
            )
        )
