"""`BlockPool`: counts the holders of KV blocks. Plain integers, no device."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Counts the holders of `num_blocks` blocks and keeps the free ones in order of reuse.

    A free block may have a label: its content can then be found by hash and shared. Free blocks without a label are
    allocated first. Labelled blocks follow, least recently freed first. Allocating a labelled block drops its label and
    calls `on_evict`.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._labelled: set[int] = set()
        self.num_free_labelled = 0  # free blocks that can be found again
        self._on_evict = on_evict

    @property
    def num_held(self) -> int:
        """Number of blocks with holders."""
        return self.num_blocks - len(self._free)

    def free_block_ids(self) -> list[int]:
        """Returns the blocks without holders, in order of reuse."""
        return list(self._free)

    @property
    def num_free(self) -> int:
        """Number of blocks without holders, labelled or not."""
        return len(self._free)

    def num_free_beside(self, block_ids: Iterable[int]) -> int:
        """Returns the number of blocks that stay free after `share` of these blocks."""
        return len(self._free) - sum(not self._num_holders[block_id] for block_id in block_ids)

    def allocate(self, num_blocks: int) -> list[int]:
        """Allocates blocks for one holder. The caller has checked that they are free."""
        assert 0 <= num_blocks <= len(self._free), (num_blocks, len(self._free))
        taken = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in taken:
            self._num_holders[block_id] = 1
            if block_id in self._labelled:
                self._labelled.remove(block_id)
                self.num_free_labelled -= 1
                self._on_evict(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to each block. Call it before `allocate`: a shared block may be on the free list."""
        for block_id in block_ids:
            if not self._num_holders[block_id]:
                del self._free[block_id]
                self.num_free_labelled -= block_id in self._labelled
            self._num_holders[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Removes one holder from each block. The caller passes a sequence's blocks last to first: blocks released
        first are reused first, and the fewest other prompts share a sequence's last blocks.
        """
        for block_id in block_ids:
            self._num_holders[block_id] -= 1
            assert self._num_holders[block_id] >= 0, block_id
            if not self._num_holders[block_id]:
                self._free[block_id] = None
                if block_id in self._labelled:
                    self.num_free_labelled += 1
                else:
                    self._free.move_to_end(block_id, last=False)

    def label(self, block_id: int) -> None:
        """Marks the content of a held block as findable."""
        assert self._num_holders[block_id], block_id
        self._labelled.add(block_id)

    def unlabel(self, block_id: int) -> bool:
        """Removes the block's label; returns True if the block had a label. A free block without a label is reused
        first.
        """
        if block_id not in self._labelled:
            return False
        self._labelled.remove(block_id)
        if block_id in self._free:
            self.num_free_labelled -= 1
            self._free.move_to_end(block_id, last=False)
        return True

    def unlabel_all(self) -> None:
        """Removes the labels of all blocks."""
        self._labelled.clear()
        self.num_free_labelled = 0

    def check(self) -> None:
        """Asserts the invariants. Expensive; for tests."""
        assert all(n >= 0 for n in self._num_holders)
        free = {block_id for block_id, n in enumerate(self._num_holders) if n == 0}
        assert free == set(self._free), "the free list and the counts disagree"
        assert self.num_free_labelled == len(free & self._labelled)

    def num_holders(self, block_id: int) -> int:
        """Returns the number of holders of one block."""
        return self._num_holders[block_id]
