"""`StatePool`: slots for what recurrent layers keep of a sequence, and which of them others may go on from.

A sequence writes into a slot of its own. Where it stops at a boundary that is to have a snapshot, the slot as it is
becomes the snapshot, found by the hash of the block that ends there; the sequence reads it once more, and writes into
another slot. So no state is ever copied. Plain ints, no device.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from weft.core.values.kv_cache import StateCacheConfig
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.sequence import Sequence


class StatePool:
    """Snapshots that nobody reads are given out last, the one unread for longest first."""

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
        """Slots that can be found by hash."""
        return len(self._slot_by_hash)

    def num_reusable(self, block_hashes: list[bytes]) -> int:
        """How many of the blocks that begin a sequence lie before the last boundary with a snapshot."""
        found = (
            i for i in range(len(block_hashes), 0, -1) if block_hashes[i - 1] in self._slot_by_hash
        )
        return next(found, 0)

    def slot_of(self, block_hash: bytes) -> int | None:
        """Where the snapshot of that block lies."""
        return self._slot_by_hash.get(block_hash)

    def hold(self, sequence: Sequence, block_hash: bytes) -> None:
        """Let it go on from the snapshot of a block."""
        slot = self._slot_by_hash[block_hash]
        self.pool.share([slot])
        sequence.state_slot = slot

    def is_writable(self, slot: int | None) -> bool:
        """Whether the sequence that has it is the only one that will ever read it as it is."""
        return (
            slot is not None and slot not in self._hash_by_slot and self.pool.num_holders(slot) == 1
        )

    def prepare(self, sequence: Sequence) -> None:
        """Give it a slot that it may write, if it has none. The caller has seen that one is free."""
        if not self.is_writable(sequence.state_slot):
            self._release_source(sequence)
            sequence.state_source = sequence.state_slot
            (sequence.state_slot,) = self.pool.allocate(1)

    def end_of_chunk(self, sequence: Sequence, start: int, end: int) -> int:
        """Where a chunk of it must end, `end` at the latest: at the next boundary that is to have a snapshot."""
        boundary = (start // self._interval + 1) * self._interval
        last = self.last_boundary(sequence)
        return min(end, boundary, last if last > start else end)

    def keep(self, sequence: Sequence, end: int) -> None:
        """Its step up to there is computed: the state is kept as a snapshot if it is that of such a boundary.

        Of an answer the last full block's is kept too, in place of the one before, while half of the slots are free.
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
        """Take its slots; a snapshot can be found until it is given out again."""
        self._release_source(sequence)
        sequence.last_snapshot = None  # from which it goes on, if it was preempted
        if sequence.state_slot is not None:
            self.pool.release([sequence.state_slot])
            sequence.state_slot = None

    def forget(self, block_hash: bytes) -> None:
        """Make the snapshot of a block unfindable, if there is one."""
        slot = self._slot_by_hash.pop(block_hash, None)
        if slot is not None:
            del self._hash_by_slot[slot]
            self.pool.unlabel(slot)

    def clear(self) -> None:
        """Make every snapshot unfindable."""
        self._slot_by_hash.clear()
        self._hash_by_slot.clear()
        self.pool.unlabel_all()

    def check(self, sequences: Iterable[Sequence], lent: Iterable[int]) -> None:
        """Assert what must always hold, with all that hold slots, and those that are lent. Dear; for tests."""
        self.pool.check()
        held = Counter(slot for s in sequences for slot in (s.state_slot, s.state_source))
        held.update(lent)
        assert all(
            self.pool.num_holders(slot) == held[slot] for slot in range(self.pool.num_blocks)
        )
        assert {slot: digest for digest, slot in self._slot_by_hash.items()} == self._hash_by_slot

    def label(self, sequence: Sequence, block_hash: bytes) -> bool:
        """Make the slot that it wrote the snapshot of that block, if there is none."""
        slot = sequence.state_slot
        if slot is None or block_hash in self._slot_by_hash:
            return False
        self._slot_by_hash[block_hash] = slot
        self._hash_by_slot[slot] = block_hash
        self.pool.label(slot)
        return True

    def last_boundary(self, sequence: Sequence) -> int:
        """Of the prompt, before its last token: that is computed again wherever the prompt comes again."""
        return (sequence.num_prompt_tokens - 1) // self._block_size * self._block_size

    def _release_source(self, sequence: Sequence) -> None:
        if sequence.state_source is not None:
            self.pool.release([sequence.state_source])
            sequence.state_source = None

    def _evict(self, slot: int) -> None:
        block_hash = self._hash_by_slot.pop(slot)
        del self._slot_by_hash[block_hash]
        self._on_evict(slot, block_hash)
