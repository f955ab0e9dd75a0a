"""The KV prefix cache: holders of blocks, and lookup of blocks with KV that a new sequence would compute again.

Plain integers, no device. Blocks are found by a chain of SHA-256 hashes, because a collision would serve one
caller's context to another. Every field that changes the KV of a block is in its hash, length-prefixed, so that no
two different inputs are encoded alike. A block is registered when it is planned, before its content is computed:
sequences of the same step may share it, because a step writes all KV of a layer before any row attends to it.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    StateCacheConfig,
)
from weft.core.values.kv_transfer import lends_chunks, lends_prompt
from weft.core.values.types import FinishReason
from weft.engine.scheduling.block_hashes import block_hash, chain_root, items_in
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.blocks.lent_blocks import Lender, LentBlocks
from weft.engine.scheduling.blocks.state_pool import StatePool
from weft.engine.scheduling.blocks.stored_blocks import stored_blocks
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.scheduling.tower_outputs import TowerOutputs


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a KV block, as a cache event; or of a state slot: the state after the block `block_hash`."""

    place: int
    block_hash: bytes
    stored: BlockStored | None  # None for a state


class PrefixCache:
    """KV blocks, found by the hash of all tokens up to the block's end. Several blocks may have the same hash.

    With `keeps_evicted` the cache records the content of each block, and `take_evicted` returns evicted content. A
    state snapshot is lent, evicted and forgotten together with its block.
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
        self.outputs: TowerOutputs | None = None  # set by the scheduler of a model with pictures
        self._is_enabled = is_enabled
        self._weights_epoch = 0
        self._blocks_by_hash: dict[bytes, list[int]] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self._events: list[KvEvent] = []

    @property
    def num_cached(self) -> int:
        """Number of blocks that can be found by hash."""
        return len(self._hash_by_block)

    def extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        """Extends `sequence.block_hashes` to its first `num_blocks` blocks, which are all full."""
        hashes = sequence.block_hashes
        size, items = self.block_size, sequence.request.items
        while self._is_enabled and len(hashes) < num_blocks:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else self._root(sequence)
            within = items_in(items, start, start + size) if items else ()
            hashes.append(block_hash(parent, sequence.token_ids[start : start + size], within))

    def readable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Returns the hashes of the blocks that the sequence may take from the cache. The block with the sequence's
        last token is never among them: the last token must be computed, for its logits.
        """
        if not self._is_enabled or sequence.skips_cache_read:
            return []
        num_full = (sequence.num_tokens - 1) // self.block_size
        self.extend_hashes(sequence, num_full)
        return sequence.block_hashes[:num_full]

    def find(self, sequence: Sequence) -> list[int]:
        """Returns the block ids of the longest cached prefix; with states, of the longest that has a snapshot at its
        end.
        """
        found = self.find_blocks(sequence)
        if self.states is not None:
            del found[self.states.num_reusable(sequence.block_hashes[: len(found)]) :]
        return found

    def find_blocks(self, sequence: Sequence) -> list[int]:
        """Returns the block ids of the sequence's longest cached prefix, even if its end has no state snapshot."""
        found: list[int] = []
        for digest in self.readable_hashes(sequence):
            blocks = self._blocks_by_hash.get(digest)
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Makes the full blocks of the first `num_tokens` tokens findable, as far as these tokens are known."""
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
                self._content_by_block[block_id] = stored_blocks(
                    sequence, index, index + 1, self.block_size
                )
        sequence.num_registered_blocks = num_full
        self._events.append(stored_blocks(sequence, first, num_full, self.block_size))

    def adopt(self, sequence: Sequence, digest: bytes, block_id: int | None = None) -> int | None:
        """Gives a fetching sequence its next block and registers the block; the caller writes the block's content.

        A given `block_id` means that this block already has the content. Returns None, without a change, if no block is
        free, the sequence is not fetching any more, or `digest` or `block_id` is not that of the sequence's next block.
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
        """Makes the state slot of a fetching sequence the snapshot of a block; the caller writes the slot's content.

        A given `slot` means that this slot already has the content. Returns None, without a change, if the block has a
        snapshot already, the sequence is not fetching any more, or the block is not among its fetched blocks.
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
        """Returns the number of blocks that these sequences still need to hold all their tokens."""
        return sum(self._num_blocks(s.num_tokens) - len(s.block_ids) for s in sequences)

    def fits(self, sequence: Sequence, found: list[int], reserved: int) -> bool:
        """True if the pool has room for the whole sequence, not only its first chunk, and for `reserved` blocks."""
        if self.states is not None:
            snapshot = self.states.slot_of(sequence.block_hashes[len(found) - 1]) if found else None
            if not self._has_room(self.states.pool, 1, [] if snapshot is None else [snapshot]):
                return False
        num_blocks = self._num_blocks(sequence.num_tokens)
        return self._has_room(self.pool, num_blocks - len(found) + reserved, found)

    def hold(self, sequence: Sequence, found: list[int], *, has_state: bool = True) -> int:
        """Makes the sequence begin with the cached blocks `found`, and with the state after them if `has_state`.
        Returns the number of cached tokens.
        """
        self.pool.share(found)
        if self.states is not None and found and has_state:
            self.states.hold(sequence, sequence.block_hashes[len(found) - 1])
        num_cached = len(found) * self.block_size
        sequence.block_ids = array("i", found)
        sequence.num_registered_blocks = len(found)
        sequence.num_planned_tokens = sequence.num_computed_tokens = num_cached
        return num_cached

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Gives the sequence blocks for `num_tokens` tokens, and a slot for its state. Returns False and changes
        nothing if there is not enough room.
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
        """Returns how many tokens from `start` on one step may compute: at most up to the next state snapshot."""
        num_left = len(sequence.token_ids) + sequence.num_pending_tokens - start
        num_tokens = min(num_left, budget)
        if self.states is None or not self._is_enabled:
            return num_tokens
        return self.states.end_of_chunk(sequence, start, start + num_tokens) - start

    def give_back(self, sequence: Sequence) -> None:
        """Releases all blocks of the sequence; computed blocks can be found until they are allocated again."""
        if self.lent is not None:
            self.lent.take_back(sequence.request.engine_id)
        # Blocks that were registered for a step that will not run have no valid content.
        num_computed_blocks = sequence.num_computed_tokens // self.block_size
        self.distrust(sequence.block_ids[num_computed_blocks:])
        if self.states is not None:
            self.states.give_back(sequence)
        if sequence.outputs and self.outputs is not None:
            self.outputs.release(sequence)
        self.pool.release(reversed(sequence.block_ids))
        sequence.block_ids = array("i")
        sequence.num_registered_blocks = 0
        sequence.num_planned_tokens = sequence.num_computed_tokens = 0

    def lend(self, sequence: Sequence, reason: FinishReason | None) -> dict[str, Any] | None:
        """Lends the full blocks of a finished prompt to another engine, if the request's params say so. Returns the
        transfer params with which the other engine fetches the blocks; None if nothing is lent.
        """
        if self.lent is None or reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return None
        if not lends_prompt(sequence.params.extra_args):
            return None
        block_ids, hashes = self._lent_blocks(sequence)
        slot = None
        if self.states is not None and hashes:
            slot = self.states.slot_of(hashes[-1])
        if not block_ids or (self.states is not None and slot is None):
            return None  # blocks that `lend_ahead` lent are taken back when the sequence ends
        return self.lent.lend(sequence.request.engine_id, block_ids, hashes, slot)

    def lend_ahead(self, sequence: Sequence) -> dict[str, Any] | None:
        """Lends the computed blocks of a prompt in progress, if the request's params say so. The first call that lends
        returns the transfer params with which another engine fetches the whole prompt; other calls return None.
        """
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
        """Returns the prompt's full blocks, up to the last state boundary, and the hashes of these blocks."""
        num_tokens = sequence.num_prompt_tokens
        if self.states is not None:
            num_tokens = self.states.last_boundary(sequence)
        num_full = num_tokens // self.block_size
        self.extend_hashes(sequence, num_full)
        return sequence.block_ids[:num_full].tolist(), sequence.block_hashes[:num_full]

    def distrust(self, block_ids: Seq[int]) -> None:
        """Makes these blocks unfindable, because their content may be wrong."""
        for block_id in block_ids:
            if self.pool.unlabel(block_id):
                if self.states is not None:
                    self.states.forget(self._hash_by_block[block_id])
                self._forget(block_id)

    def take_evicted(self) -> list[Content]:
        """Returns the content of blocks and slots that were reallocated since the last call. The next step overwrites
        this content.
        """
        evicted, self._evicted = self._evicted, []
        return evicted

    def lasting_content(self) -> list[Content]:
        """Returns the content of free blocks whose hashes are valid in other processes, last to be evicted first."""
        content = self._content_by_block or {}
        free = [(b, content[b]) for b in reversed(self.pool.free_block_ids()) if b in content]
        lasting = [(b, found) for b, found in free if not self.nonce_for(found.lora_name)]
        return [each for b, found in lasting for each in self._with_state(b, found)]

    def clear(self) -> None:
        """Makes every block unfindable. Held blocks keep their content for their holders."""
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
        """Starts an epoch of new weights: makes all blocks of the old weights unfindable."""
        self._weights_epoch += 1
        if self.outputs is not None:
            self.outputs.clear()
        self.clear()

    def take_events(self) -> list[KvEvent]:
        """Returns the cache events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check(self, sequences: Iterable[Sequence] = ()) -> None:
        """Asserts the invariants, given all holders. Expensive; for tests."""
        self.pool.check()
        if self.states is not None:
            self.states.check(sequences, () if self.lent is None else self.lent.slots())
        listed = {b: h for h, blocks in self._blocks_by_hash.items() for b in blocks}
        assert listed == self._hash_by_block
        assert all(self._blocks_by_hash.values()), "an empty list of blocks is kept"

    def _has_room(self, pool: BlockPool, count: int, beside: Seq[int] = ()) -> bool:
        """True if `count` blocks of a pool other than `beside` are free. Ends leases if too few blocks are free."""
        if count <= pool.num_free_beside(beside):
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
            lora_generation=request.lora_id or 0,  # each load of an adapter has a new id
            cache_salt=request.cache_salt,
            process_nonce=self.nonce_for(request.lora_name),
        )

    def nonce_for(self, lora_name: str | None) -> bytes:
        """Returns a nonce of this process if the hashes depend on a weights epoch or an adapter id, because other
        processes count epochs and ids differently. Otherwise returns an empty nonce.
        """
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
        """Yields a block, and the state after it if there is one."""
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
