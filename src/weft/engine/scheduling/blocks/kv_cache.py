"""KV blocks: who holds which, and which hold what a new sequence would only compute again.

Plain ints, no device. Blocks are found by a chain of hashes, SHA-256, because a collision would serve one
caller's context to another: every field that changes the KV of a block is in its hash, length-prefixed,
so that no two different inputs read alike. A block is registered when it
is planned, before its content is computed: sequences of the same step may share it, because a step
writes all K/V of a layer before any row attends to it.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from weft.core.values.kv_cache import StateCacheConfig
from weft.core.values.kv_transfer import lends_chunks, lends_prompt
from weft.core.values.types import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    FinishReason,
    KvEvent,
)
from weft.engine.scheduling.block_hashes import block_hash, chain_root
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.blocks.lent_blocks import Lender, LentBlocks
from weft.engine.scheduling.blocks.state_pool import StatePool
from weft.engine.scheduling.sequence import Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class Content:
    """What lies in a block of the pool, as routers know it; or in a slot, the state behind the block of that hash."""

    place: int
    block_hash: bytes
    stored: BlockStored | None  # None: a state


class PrefixCache:
    """Blocks by the hash of all tokens up to their end. Several blocks may have one hash.

    With `keeps_evicted` it remembers what each block holds, and `take_evicted` gives what was evicted. A snapshot of
    a state goes where its block goes: it is lent, evicted and forgotten with that.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        is_enabled: bool = True,
        keeps_evicted: bool = False,
        lender: Lender | None = None,
        states: StateCacheConfig | None = None,
    ) -> None:
        self.block_size = block_size
        self.states = None if states is None else StatePool(states, block_size, self._evict_state)
        self.pool = BlockPool(num_blocks, self._evict)
        slots = None if self.states is None else self.states.pool
        self.lent = None if lender is None else LentBlocks(self.pool, slots, lender)
        self._content_by_block: dict[int, BlockStored] | None = {} if keeps_evicted else None
        self._evicted: list[Content] = []
        self._nonce = os.urandom(16)
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

    def readable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Of the blocks that it may find computed, at least one token left out: the last token must
        be computed, for its logits."""
        if not self._is_enabled or sequence.skips_cache_read:
            return []
        num_full = (sequence.num_tokens - 1) // self.block_size
        self.extend_hashes(sequence, num_full)
        return sequence.block_hashes[:num_full]

    def find(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that begins the sequence, and ends where it can be gone on from."""
        found = self.find_blocks(sequence)
        if self.states is not None:
            del found[self.states.num_reusable(sequence.block_hashes[: len(found)]) :]
        return found

    def find_blocks(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that begins the sequence, whether or not there is a state behind it."""
        found: list[int] = []
        for digest in self.readable_hashes(sequence):
            blocks = self._blocks_by_hash.get(digest)
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the blocks that the first `num_tokens` tokens fill findable, as far as these are known."""
        num_full = min(num_tokens, len(sequence.token_ids)) // self.block_size
        first = sequence.num_registered_blocks
        if not self._is_enabled or num_full <= first:
            return
        self.extend_hashes(sequence, num_full)
        for index in range(first, num_full):
            block_id, digest = sequence.block_ids[index], sequence.block_hashes[index]
            self._hash_by_block[block_id] = digest
            self._blocks_by_hash.setdefault(digest, []).append(block_id)
            self.pool.label(block_id)
            if self._content_by_block is not None:
                self._content_by_block[block_id] = self._stored(sequence, index, index + 1)
        sequence.num_registered_blocks = num_full
        self._events.append(self._stored(sequence, first, num_full))

    def adopt(self, sequence: Sequence, digest: bytes, block_id: int | None = None) -> int | None:
        """Give a sequence that fetches its next block, findable at once: the caller writes what belongs there.

        With `block_id` it was written there already. None, and no change, if no block is free, the sequence
        fetches no more, or `digest` or `block_id` is of another block.
        """
        place = sequence.num_computed_tokens // self.block_size
        is_next = [digest] == sequence.block_hashes[place : place + 1]
        is_there = block_id is None or [block_id] == sequence.block_ids[place : place + 1].tolist()
        if sequence.status is not SequenceStatus.FETCHING or not is_next or not is_there:
            return None
        num_tokens = (place + 1) * self.block_size
        if not self.grow(sequence, num_tokens):
            return None
        sequence.num_computed_tokens = num_tokens
        sequence.has_fetched = True
        sequence.num_fetched_tokens += self.block_size
        self.register(sequence, num_tokens)
        return sequence.block_ids[place]

    def adopt_state(self, sequence: Sequence, digest: bytes, slot: int | None = None) -> int | None:
        """Make what a sequence that fetches has in its slot the snapshot of that block, once it is written there.

        With `slot` it was written there already. None, and no change, where there is such a snapshot, the sequence
        fetches no more, or the block is none of those that it has.
        """
        num_there = sequence.num_computed_tokens // self.block_size
        is_its = digest in sequence.block_hashes[:num_there] and digest in self._blocks_by_hash
        if self.states is None or sequence.status is not SequenceStatus.FETCHING or not is_its:
            return None
        if slot not in (None, sequence.state_slot) or not self.states.label(sequence, digest):
            return None
        sequence.has_fetched = True
        return sequence.state_slot

    def num_missing(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that these have still to be given, to be whole."""
        return sum(self._num_blocks(s.num_tokens) - len(s.block_ids) for s in sequences)

    def fits(self, sequence: Sequence, found: list[int], reserved: int) -> bool:
        """Whether the whole sequence, and not just its first chunk, has room now, beside `reserved` blocks."""
        if self.states is not None:
            snapshot = self.states.slot_of(sequence.block_hashes[len(found) - 1]) if found else None
            if not self._has_room(self.states.pool, 1, [] if snapshot is None else [snapshot]):
                return False
        num_blocks = self._num_blocks(sequence.num_tokens)
        return self._has_room(self.pool, num_blocks - len(found) + reserved, found)

    def hold(self, sequence: Sequence, found: list[int], *, has_state: bool = True) -> int:
        """Let it begin with these blocks, and the state behind them if `has_state`; how many tokens they are."""
        self.pool.share(found)
        if self.states is not None and found and has_state:
            self.states.hold(sequence, sequence.block_hashes[len(found) - 1])
        num_cached = len(found) * self.block_size
        sequence.block_ids = array("i", found)
        sequence.num_registered_blocks = len(found)
        sequence.num_planned_tokens = sequence.num_computed_tokens = num_cached
        return num_cached

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence blocks for `num_tokens` tokens, and a place for its state.

        False, and no change, if there is not enough.
        """
        missing = -(-num_tokens // self.block_size) - len(sequence.block_ids)
        if missing <= 0 and self.states is None:
            return True
        if missing > 0 and not self._has_room(self.pool, missing):
            return False
        if self.states is not None:
            is_ready = self.states.is_writable(sequence.state_slot)
            if not is_ready and not self._has_room(self.states.pool, 1):
                return False
            self.states.prepare(sequence)
        if missing > 0:
            sequence.block_ids.extend(self.pool.allocate(missing))
        return True

    def next_chunk(self, sequence: Sequence, start: int, budget: int) -> int:
        """How many tokens it may compute from `start` on: no more than to where a state is to be kept."""
        num_left = len(sequence.token_ids) + sequence.num_pending_tokens - start
        num_tokens = min(num_left, budget)
        if self.states is None or not self._is_enabled:
            return num_tokens
        return self.states.end_of_chunk(sequence, start, start + num_tokens) - start

    def keep_state(self, sequence: Sequence, end: int) -> None:
        """A step of it that ends there is computed, or will be before any other: its state may be one to go on from."""
        if self.states is not None:
            self.states.keep(sequence, end)

    def give_back(self, sequence: Sequence) -> None:
        """Take all its blocks; what is computed in them can be found until they are given out again."""
        if self.lent is not None:
            self.lent.take_back(sequence.request.engine_id)
        # Blocks registered for a step that will not run hold nothing worth finding.
        num_computed_blocks = sequence.num_computed_tokens // self.block_size
        self.distrust(sequence.block_ids[num_computed_blocks:])
        if self.states is not None:
            self.states.give_back(sequence)
        self.pool.release(reversed(sequence.block_ids))
        sequence.block_ids = array("i")
        sequence.num_registered_blocks = 0
        sequence.num_planned_tokens = sequence.num_computed_tokens = 0

    def lend(self, sequence: Sequence, reason: FinishReason | None) -> dict[str, Any] | None:
        """Hold the full blocks of a prompt that ends so for another engine, if it is to; what fetches them."""
        if self.lent is None or reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return None
        if not lends_prompt(sequence.params.extra_args):
            return None
        block_ids, hashes = self._lent_blocks(sequence)
        slot = None
        if self.states is not None and hashes:
            slot = self.states.slot_of(hashes[-1])
        if not block_ids or (self.states is not None and slot is None):
            return None  # what was lent ahead is taken back with the sequence's end
        return self.lent.lend(sequence.request.engine_id, block_ids, hashes, slot)

    def lend_ahead(self, sequence: Sequence) -> dict[str, Any] | None:
        """Lend what is computed of a prompt of which more steps follow, if it is to; what fetches all of it, once."""
        if self.lent is None or not lends_chunks(sequence.params.extra_args):
            return None
        engine_id, num_computed = (
            sequence.request.engine_id,
            sequence.num_computed_tokens // self.block_size,
        )
        if self.lent.is_ahead(engine_id):
            self.lent.advance(engine_id, num_computed)
            return None
        if not (num_computed and self.grow(sequence, sequence.num_prompt_tokens)):
            return None
        block_ids, hashes = self._lent_blocks(sequence)
        if not block_ids:
            return None
        return self.lent.lend_ahead(engine_id, block_ids, hashes, num_computed)

    def _lent_blocks(self, sequence: Sequence) -> tuple[list[int], list[bytes]]:
        """The full ones of its prompt, up to where there is a state to go on from; and their hashes."""
        num_tokens = sequence.num_prompt_tokens
        if self.states is not None:
            num_tokens = self.states.last_boundary(sequence)
        num_full = num_tokens // self.block_size
        self.extend_hashes(sequence, num_full)
        return sequence.block_ids[:num_full].tolist(), sequence.block_hashes[:num_full]

    def distrust(self, block_ids: Seq[int]) -> None:
        """Make these blocks unfindable: their content is not to be relied on."""
        for block_id in block_ids:
            if self.pool.unlabel(block_id):
                if self.states is not None:
                    self.states.forget(self._hash_by_block[block_id])
                self._forget(block_id)

    def take_evicted(self) -> list[Content]:
        """What was in blocks and slots that were given out since the last call, until a step overwrites it."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def lasting_content(self) -> list[Content]:
        """Of free blocks what another process may find; what would be evicted last comes first."""
        content = self._content_by_block or {}
        free = [(b, content[b]) for b in reversed(self.pool.free_block_ids()) if b in content]
        lasting = [(b, found) for b, found in free if not self._nonce_for(found.lora_name)]
        return [each for b, found in lasting for each in self._with_state(b, found)]

    def clear(self) -> None:
        """Make every block unfindable. Held blocks keep their content for their holders."""
        self._blocks_by_hash.clear()
        self._hash_by_block.clear()
        self.pool.unlabel_all()
        if self.states is not None:
            self.states.clear()
        self._evicted.clear()
        if self.lent is not None:
            self.lent.end_all()
        if self._content_by_block is not None:
            self._content_by_block.clear()
        self._events.append(AllBlocksCleared())

    def start_weights_epoch(self) -> None:
        """The weights have changed: nothing computed so far is found from now on."""
        self._weights_epoch += 1
        self.clear()

    def take_events(self) -> list[KvEvent]:
        """What changed since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check(self, sequences: Iterable[Sequence] = ()) -> None:
        """Assert what must always hold, with all that hold something. Dear; for tests."""
        self.pool.check()
        if self.states is not None:
            self.states.check(sequences, () if self.lent is None else self.lent.slots())
        listed = {b: h for h, blocks in self._blocks_by_hash.items() for b in blocks}
        assert listed == self._hash_by_block
        assert all(self._blocks_by_hash.values()), "an empty list of blocks is kept"

    def _has_room(self, pool: BlockPool, count: int, beside: Seq[int] = ()) -> bool:
        """Whether so many of a pool are free, `beside` not counted; for as many leases end as it takes."""
        if count <= pool.num_free - pool.num_free_among(beside):
            return True
        return self.lent is not None and self.lent.make_room(pool, count, beside)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _root(self, sequence: Sequence) -> bytes:
        request = sequence.request
        return chain_root(
            block_size=self.block_size,
            weights_epoch=self._weights_epoch,
            lora_name=request.lora_name,
            lora_generation=request.lora_id or 0,  # a new one each time an adapter is loaded
            cache_salt=request.cache_salt,
            process_nonce=self._nonce_for(request.lora_name),
        )

    def _nonce_for(self, lora_name: str | None) -> bytes:
        """Another process counts epochs and adapters from the start again, and means others by them."""
        return self._nonce if self._weights_epoch or lora_name else b""

    def _evict(self, block_id: int) -> None:
        digest = self._hash_by_block[block_id]
        if self._content_by_block is not None and self._blocks_by_hash[digest] == [block_id]:
            self._evicted += self._with_state(block_id, self._content_by_block[block_id])
        self._forget(block_id)

    def _evict_state(self, slot: int, block_hash: bytes) -> None:
        if self._content_by_block is not None:
            self._evicted.append(Content(slot, block_hash, None))

    def _with_state(self, block_id: int, stored: BlockStored) -> Iterator[Content]:
        """A block, and the state behind it if there is one."""
        [block_hash] = stored.block_hashes
        yield Content(block_id, block_hash, stored)
        slot = None if self.states is None else self.states.slot_of(block_hash)
        if slot is not None:
            yield Content(slot, block_hash, None)

    def _forget(self, block_id: int) -> None:
        digest = self._hash_by_block.pop(block_id)
        blocks = self._blocks_by_hash[digest]
        blocks.remove(block_id)
        if not blocks:
            del self._blocks_by_hash[digest]
            if self.states is not None:
                self.states.forget(digest)
            self._events.append(BlockRemoved(block_hashes=[digest]))
        if self._content_by_block is not None:
            del self._content_by_block[block_id]

    def _stored(self, sequence: Sequence, first: int, end: int) -> BlockStored:
        size = self.block_size
        return BlockStored(
            block_hashes=sequence.block_hashes[first:end],
            parent_block_hash=sequence.block_hashes[first - 1] if first else None,
            token_ids=sequence.token_ids[first * size : end * size],
            block_size=size,
            lora_name=sequence.request.lora_name,
            cache_salt=sequence.request.cache_salt,
        )
