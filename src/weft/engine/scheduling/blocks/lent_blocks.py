"""`LentBlocks`: blocks of finished prompts, held for the engines that continue them."""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.core.values.kv_transfer import HAND_OVER_S
from weft.engine.scheduling.blocks.block_pool import BlockPool


class Lender(Protocol):
    """Lends blocks to other engines."""

    def offer(
        self,
        request_id: str,
        block_ids: list[int],
        hashes: list[bytes],
        num_computed: int,
        slot: int | None,
    ) -> dict[str, Any]:
        """Lends these blocks until `withdraw`; the first `num_computed` are computed. Returns the transfer params with
        which another engine fetches the blocks.

        `slot` holds the state after the last block, if the model has states and this state is computed.
        """

    def share(self, request_id: str) -> dict[str, Any]:
        """Lends the blocks of this lease to one more engine, for a full lease time. Returns the transfer params with
        which that engine fetches the blocks.
        """

    def advance(self, request_id: str, num_computed: int, slot: int | None) -> None:
        """Makes further blocks of a lease, or its state, available to the engine that fetches them: they are computed
        now.
        """

    def withdraw(self, request_id: str) -> None:
        """Ends a lease; when this returns, no thread reads its blocks."""


MAX_LEASES = 1024  # a lease takes about 10 KiB


@dataclass(frozen=True, slots=True)
class _Held:
    prompt_hash: bytes
    block_ids: list[int]
    slots: list[int]  # the slot of the state after these blocks, if the model has states


class LentBlocks:
    """The leases of an engine. A lease holds blocks in the same way as a sequence. If blocks run out, the oldest leases
    end.

    In a model with states each lease also holds one state slot. The oldest leases end if slots run out, and if there
    are more than `MAX_LEASES` leases. Requests with the same prompt share one lease.
    """

    def __init__(self, pool: BlockPool, slot_pool: BlockPool | None, lender: Lender) -> None:
        self._pool = pool
        self._slot_pool = slot_pool
        self._lender = lender
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by request id, oldest first
        self._by_prompt: dict[bytes, str] = {}  # request id of the lease, by hash of the prompt
        # Transfer params by request id, for leases of running sequences. Such a sequence holds its blocks itself.
        self._ahead: dict[str, dict[str, Any]] = {}
        self._handed_over: dict[str, float] = {}  # when, by request id, latest last

    @property
    def waits_for_s(self) -> float:
        """Seconds for which an engine that stops still waits for fetches of blocks that it has handed over."""
        if not self._handed_over:
            return 0.0
        last = next(reversed(self._handed_over.values()))
        return max(0.0, last + HAND_OVER_S - time.monotonic())

    def hand_over(
        self, request_id: str, block_ids: list[int], hashes: list[bytes]
    ) -> dict[str, Any]:
        """Lends the blocks of a request that continues at another engine."""
        self._handed_over[request_id] = time.monotonic()
        return self.lend(request_id, block_ids, hashes, None)

    def __iter__(self) -> Iterator[int]:
        """Yields the id of each lent block, once for each lease of the block."""
        return (block_id for held in self._held.values() for block_id in held.block_ids)

    def slots(self) -> Iterator[int]:
        """Yields each lent state slot, once for each lease of the slot."""
        return (slot for held in self._held.values() for slot in held.slots)

    def lend(
        self, request_id: str, block_ids: list[int], hashes: list[bytes], slot: int | None
    ) -> dict[str, Any]:
        """Holds these blocks, and the state after them, for another engine. Returns the transfer params with which that
        engine fetches the blocks.
        """
        is_ahead = request_id in self._ahead
        if not is_ahead and (same := self._by_prompt.get(hashes[-1])) is not None:
            self._held.move_to_end(same)
            return self._lender.share(same)
        self._pool.share(block_ids)
        held = _Held(hashes[-1], block_ids, [])
        if slot is not None and self._slot_pool is not None:
            self._slot_pool.share([slot])
            held.slots.append(slot)
        self._held[request_id] = held
        self._by_prompt.setdefault(held.prompt_hash, request_id)
        if len(self._held) > MAX_LEASES:
            self.end(next(iter(self._held)))
        if not is_ahead:
            return self._lender.offer(request_id, block_ids, hashes, len(block_ids), slot)
        self._lender.advance(request_id, len(block_ids), slot)
        return self._ahead.pop(request_id)

    def is_ahead(self, request_id: str) -> bool:
        """True if this request's sequence is running and its blocks are lent already."""
        return request_id in self._ahead

    def lend_ahead(
        self, request_id: str, block_ids: list[int], hashes: list[bytes], num_computed: int
    ) -> dict[str, Any]:
        """Lends blocks that a running sequence holds and is still computing. Returns the transfer params to fetch the
        blocks.
        """
        found = self._lender.offer(request_id, block_ids, hashes, num_computed, None)
        self._ahead[request_id] = found
        return found

    def advance(self, request_id: str, num_computed: int) -> None:
        """Updates the number of computed blocks in the lease of a running sequence."""
        self._lender.advance(request_id, num_computed, None)

    def take_back(self, request_id: str) -> None:
        """Ends the lease of a running sequence that gives its blocks back."""
        if self._ahead.pop(request_id, None) is not None:
            self._lender.withdraw(request_id)

    def end(self, request_id: str) -> None:
        """Ends one request's lease and releases its blocks."""
        self._lender.withdraw(request_id)
        self._handed_over.pop(request_id, None)
        held = self._held.pop(request_id)
        if self._by_prompt.get(held.prompt_hash) == request_id:
            del self._by_prompt[held.prompt_hash]
        self._pool.release(reversed(held.block_ids))
        if self._slot_pool is not None:
            self._slot_pool.release(held.slots)

    def end_all(self) -> None:
        """Ends all leases."""
        for request_id in list(self._held):
            self.end(request_id)

    def make_room(self, pool: BlockPool, count: int, beside: Sequence[int]) -> bool:
        """Ends leases until `count` blocks other than `beside` are free; False, and no change, if that is not
        possible.
        """
        lent = Counter(self.slots() if pool is self._slot_pool else self)
        only_lent = {b for b, num_lent in lent.items() if pool.num_holders(b) == num_lent}
        missing = count - pool.num_free_beside(beside)
        if len(only_lent.difference(beside)) < missing:
            return False
        while pool.num_free_beside(beside) < count:
            self.end(next(iter(self._held)))
        return True
