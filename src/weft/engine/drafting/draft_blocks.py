"""`DraftBlocks`: records which of the engine's blocks also hold the drafter's KV.

The drafter's own KV pool uses the same block numbers as the engine's pool.
"""

from weft.engine.scheduling.drafts import DraftKv
from weft.engine.scheduling.sequence import Sequence


class DraftBlocks:
    """Full blocks that the drafter has computed, by hash.

    A sequence that gets such a block need not compute it again.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._hash_by_block: dict[int, bytes] = {}

    def clear(self) -> None:
        """Drops the records of all blocks."""
        self._hash_by_block.clear()

    def find(self, sequence: Sequence) -> DraftKv:
        """Returns the `DraftKv` of a sequence: the number of its first blocks that the drafter has computed."""
        num_blocks = 0
        for block_id, digest in zip(sequence.block_ids, sequence.block_hashes, strict=False):
            if self._hash_by_block.get(block_id) != digest:
                break
            num_blocks += 1
        return DraftKv(sequence.num_preemptions, num_blocks * self._block_size, num_blocks)

    def note(self, sequence: Sequence, kv: DraftKv, start: int, end: int) -> None:
        """Records the blocks that are full once rows `start` to `end` of a sequence are written.

        A full block may be read in the same step: a step writes all KV of a layer before any row attends to it.
        """
        size = self._block_size
        first = min(kv.num_noted_blocks, start // size)
        num_full = min(kv.num_tokens // size, len(sequence.block_hashes))
        for place in range(first, -(-end // size)):
            block_id = sequence.block_ids[place]
            if place < num_full:
                self._hash_by_block[block_id] = sequence.block_hashes[place]
            else:
                self._hash_by_block.pop(block_id, None)
        kv.num_noted_blocks = num_full
