"""`StatePool`: slots for the states of recurrent layers, and the snapshots that other sequences may continue from.

A sequence writes into a slot of its own. At a boundary that gets a snapshot, the slot itself becomes the snapshot,
found by the hash of the block that ends there; the sequence reads it once more, and writes into another slot. So no
state is ever copied. Plain integers, no device.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from weft.core.values.kv_cache import StateCacheConfig
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.sequence import Sequence


class StatePool:
    """Pool of state slots. Snapshots without readers are allocated last; of these, the one unread for longest
    first.
    """

    def __init__(
        self, config: StateCacheConfig, block_size: int, on_evict: Callable[[int, bytes], None]
    ) -> None:
        """`on_evict` is called with the slot and the block hash of a snapshot that is given out."""
        self.pool = BlockPool(config.num_slots, self._evict)
        self._on_evict = on_evict
        self._interval = config.mamba_block_size
        self._block_size = block_size
        self._slot_by_hash: dict[bytes, int] = {}
        self._hash_by_slot: dict[int, bytes] = {}

    @property
    def num_snapshots(self) -> int:
        """Number of slots that can be found by hash."""
        return len(self._slot_by_hash)

    def num_reusable(self, block_hashes: list[bytes]) -> int:
        """Returns how many of a sequence's first blocks lie before the last boundary with a snapshot."""
        found = (
            i for i in range(len(block_hashes), 0, -1) if block_hashes[i - 1] in self._slot_by_hash
        )
        return next(found, 0)

    def slot_of(self, block_hash: bytes) -> int | None:
        """Returns the slot of that block's snapshot; None if there is none."""
        return self._slot_by_hash.get(block_hash)

    def hold(self, sequence: Sequence, block_hash: bytes) -> None:
        """Makes the sequence continue from the snapshot of a block."""
        slot = self._slot_by_hash[block_hash]
        self.pool.share([slot])
        sequence.state_slot = slot

    def is_writable(self, slot: int | None) -> bool:
        """True if the slot is not a snapshot, and only one sequence holds it."""
        return (
            slot is not None and slot not in self._hash_by_slot and self.pool.num_holders(slot) == 1
        )

    def prepare(self, sequence: Sequence) -> None:
        """Gives the sequence a writable slot, if it has none. The caller has checked that one is free."""
        if not self.is_writable(sequence.state_slot):
            self._release_source(sequence)
            sequence.state_source = sequence.state_slot
            (sequence.state_slot,) = self.pool.allocate(1)

    def end_of_chunk(self, sequence: Sequence, start: int, end: int) -> int:
        """Returns where a chunk must end: at the next boundary that gets a snapshot, or at `end` if that is
        earlier.
        """
        boundary = (start // self._interval + 1) * self._interval
        last = self.last_boundary(sequence)
        return min(end, boundary, last if last > start else end)

    def keep(self, sequence: Sequence, end: int) -> None:
        """Keeps the state after a computed step as a snapshot if the step ends at a snapshot boundary.

        For an answer, the state after its last full block is kept too, replacing the one before, while half of the
        slots are free.
        """
        self._release_source(sequence)
        num_full, rest = divmod(end, self._block_size)
        if rest or not 0 < num_full <= len(sequence.block_hashes):
            return
        digest = sequence.block_hashes[num_full - 1]
        if end % self._interval == 0 or end == self.last_boundary(sequence):
            self.label(sequence, digest)
        elif end > sequence.num_prompt_tokens and self.pool.num_free > self.pool.num_held:
            if sequence.last_snapshot is not None:
                self.forget(sequence.last_snapshot)
            sequence.last_snapshot = digest if self.label(sequence, digest) else None

    def give_back(self, sequence: Sequence) -> None:
        """Releases the sequence's slots; a snapshot can be found until its slot is allocated again."""
        self._release_source(sequence)
        # Must not be replaced: a preempted sequence may continue from it
        sequence.last_snapshot = None
        if sequence.state_slot is not None:
            self.pool.release([sequence.state_slot])
            sequence.state_slot = None

    def forget(self, block_hash: bytes) -> None:
        """Makes the snapshot of a block unfindable, if there is one."""
        slot = self._slot_by_hash.pop(block_hash, None)
        if slot is not None:
            del self._hash_by_slot[slot]
            self.pool.unlabel(slot)

    def clear(self) -> None:
        """Makes every snapshot unfindable."""
        self._slot_by_hash.clear()
        self._hash_by_slot.clear()
        self.pool.unlabel_all()

    def check(self, sequences: Iterable[Sequence], lent: Iterable[int]) -> None:
        """Asserts the invariants, given all holders and the lent slots. Expensive; for tests."""
        self.pool.check()
        held = Counter(slot for s in sequences for slot in (s.state_slot, s.state_source))
        held.update(lent)
        assert all(
            self.pool.num_holders(slot) == held[slot] for slot in range(self.pool.num_blocks)
        )
        assert {slot: digest for digest, slot in self._slot_by_hash.items()} == self._hash_by_slot

    def label(self, sequence: Sequence, block_hash: bytes) -> bool:
        """Makes the sequence's slot the snapshot of that block; False if there is one already."""
        slot = sequence.state_slot
        if slot is None or block_hash in self._slot_by_hash:
            return False
        self._slot_by_hash[block_hash] = slot
        self._hash_by_slot[slot] = block_hash
        self.pool.label(slot)
        return True

    def last_boundary(self, sequence: Sequence) -> int:
        """Returns the last block boundary before the prompt's last token, which is computed for every request with
        the prompt.
        """
        return (sequence.num_prompt_tokens - 1) // self._block_size * self._block_size

    def _release_source(self, sequence: Sequence) -> None:
        if sequence.state_source is not None:
            self.pool.release([sequence.state_source])
            sequence.state_source = None

    def _evict(self, slot: int) -> None:
        block_hash = self._hash_by_slot.pop(slot)
        del self._slot_by_hash[block_hash]
        self._on_evict(slot, block_hash)
