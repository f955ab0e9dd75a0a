"""`StatePool`: slots for the states of recurrent layers, and snapshots from which other sequences may continue.

A sequence writes into a slot of its own. At a boundary that gets a snapshot, the slot itself becomes the snapshot; it
is found by the hash of the block that ends at the boundary. The sequence's next step reads the snapshot and writes into
another slot. So no state is ever copied. Plain integers, no device.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from weft.core.values.kv_cache import StateCacheConfig
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.sequence import Sequence


class StatePool:
    """Pool of state slots. Free slots with a snapshot are allocated last, least recently released first."""

    def __init__(
        self, config: StateCacheConfig, block_size: int, on_evict: Callable[[int, bytes], None]
    ) -> None:
        """`on_evict` is called with the slot and the block hash of a snapshot whose slot is allocated again."""
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
        """Returns the number of a sequence's first blocks up to its last block that has a snapshot."""
        found = (
            i for i in range(len(block_hashes), 0, -1) if block_hashes[i - 1] in self._slot_by_hash
        )
        return next(found, 0)

    def slot_of(self, block_hash: bytes) -> int | None:
        """Returns the slot of the block's snapshot; None if the block has no snapshot."""
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
        """Gives the sequence a writable slot, if the sequence has none. The caller has checked that a slot is free."""
        if not self.is_writable(sequence.state_slot):
            self._release_source(sequence)
            sequence.state_source = sequence.state_slot
            (sequence.state_slot,) = self.pool.allocate(1)

    def end_of_chunk(self, sequence: Sequence, start: int, end: int) -> int:
        """Returns the token index at which a chunk must end: the next boundary that gets a snapshot, or `end` if `end`
        is earlier.
        """
        boundary = (start // self._interval + 1) * self._interval
        last = self.last_boundary(sequence)
        return min(end, boundary, last if last > start else end)

    def keep(self, sequence: Sequence, end: int) -> None:
        """Keeps the state after a computed step as a snapshot if the step ends at a snapshot boundary.

        While more than half of the slots are free, the state after the last full block of an answer is kept too; it
        replaces the answer's previous snapshot.
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
        # The snapshot must not be replaced: a preempted sequence may continue from it
        sequence.last_snapshot = None
        if sequence.state_slot is not None:
            self.pool.release([sequence.state_slot])
            sequence.state_slot = None

    def forget(self, block_hash: bytes) -> None:
        """Makes the snapshot of a block unfindable; no-op if the block has no snapshot."""
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
        """Makes the sequence's slot the snapshot of the block. Returns False if the block has a snapshot already, or
        the sequence no slot.
        """
        slot = sequence.state_slot
        if slot is None or block_hash in self._slot_by_hash:
            return False
        self._slot_by_hash[block_hash] = slot
        self._hash_by_slot[slot] = block_hash
        self.pool.label(slot)
        return True

    def last_boundary(self, sequence: Sequence) -> int:
        """Returns the index of the last block boundary before the prompt's last token. Every request computes the
        prompt's last token, so no later boundary of the prompt can be reused.
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
