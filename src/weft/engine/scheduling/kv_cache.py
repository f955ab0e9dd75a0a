"""KV blocks: who holds which, and which hold what a new sequence would only compute again.

Plain ints, no device. Blocks are found by a chain of hashes, SHA-256, because a collision would serve one
caller's context to another: every field that changes the KV of a block is in its hash, length-prefixed,
so that no two different inputs read alike. A block is registered when it
is planned, before its content is computed: sequences of the same step may share it, because a step
writes all K/V of a layer before any row attends to it.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from weft.core.types import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from weft.engine.scheduling.sequence import Sequence


class BlockPool:
    """Counts the holders of `num_blocks` blocks and keeps the free ones in order of reuse.

    A free block may still be labelled: its content can be found again and shared. Blocks without a
    label are given out first; among the labelled, the one free for longest. Giving out a labelled
    block drops its label and calls `on_drop`.
    """

    def __init__(self, num_blocks: int, on_drop: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._labelled: set[int] = set()
        self._on_drop = on_drop

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, labelled or not."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these nobody holds: sharing them takes that many from `num_free`."""
        return sum(1 for block_id in block_ids if not self._num_holders[block_id])

    def allocate(self, num_blocks: int) -> list[int]:
        """Take that many blocks for one holder. The caller has seen that they are free."""
        assert 0 <= num_blocks <= len(self._free), (num_blocks, len(self._free))
        taken = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in taken:
            self._num_holders[block_id] = 1
            self._drop(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a holder to each block. Before `allocate`: a shared block may be on the free list."""
        for block_id in block_ids:
            if not self._num_holders[block_id]:
                del self._free[block_id]
            self._num_holders[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Take one holder from each block. Give a sequence's blocks last to first: its tail,
        which the fewest other prompts share, is then reused first."""
        for block_id in block_ids:
            self._num_holders[block_id] -= 1
            assert self._num_holders[block_id] >= 0, block_id
            if not self._num_holders[block_id]:
                self._free[block_id] = None
                if block_id not in self._labelled:
                    self._free.move_to_end(block_id, last=False)

    def label(self, block_id: int) -> None:
        """Mark the content of a held block as findable."""
        assert self._num_holders[block_id], block_id
        self._labelled.add(block_id)

    def unlabel(self, block_id: int) -> None:
        """Forget the block's content; if it is free it will be reused first."""
        if block_id in self._labelled:
            self._drop(block_id)
            if block_id in self._free:
                self._free.move_to_end(block_id, last=False)

    def unlabel_all(self) -> None:
        """Forget every block's content, without calling `on_drop`."""
        self._labelled.clear()

    def check(self) -> None:
        """Assert what must always hold. Dear; for tests."""
        assert all(n >= 0 for n in self._num_holders)
        free = {block_id for block_id, n in enumerate(self._num_holders) if n == 0}
        assert free == set(self._free), "the free list and the counts disagree"

    def num_holders(self, block_id: int) -> int:
        """Holders of one block; for tests."""
        return self._num_holders[block_id]

    def _drop(self, block_id: int) -> None:
        if block_id in self._labelled:
            self._labelled.remove(block_id)
            self._on_drop(block_id)


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


def chain_root(
    *,
    block_size: int,
    weights_epoch: int,
    lora_name: str | None = None,
    lora_generation: int = 0,
    cache_salt: str | None = None,
) -> bytes:
    """The parent of a chain's first block: all that isolates one cache user from another."""
    digest = hashlib.sha256(b"weft-kv-1")
    digest.update(block_size.to_bytes(8, "big") + weights_epoch.to_bytes(8, "big"))
    for tag, text in ((b"lora", lora_name), (b"salt", cache_salt)):
        raw = b"" if text is None else text.encode()
        digest.update(tag + bytes([text is not None]) + len(raw).to_bytes(8, "big") + raw)
    digest.update(lora_generation.to_bytes(8, "big"))
    return digest.digest()


def block_hash(parent: bytes, token_ids: Seq[int]) -> bytes:
    """Hash of one full block: its 32-byte parent, then its tokens as 4 bytes each."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()
