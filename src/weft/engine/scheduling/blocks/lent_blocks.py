"""`LentBlocks`: blocks of prompts that have ended here, held for the engines that continue them."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.engine.scheduling.blocks.block_pool import BlockPool


class Lender(Protocol):
    """What lends blocks to other engines."""

    def offer(
        self,
        request_id: str,
        block_ids: list[int],
        hashes: list[bytes],
        num_computed: int,
        slot: int | None,
    ) -> dict[str, Any]:
        """Lend these blocks until `withdraw`, of which so many are computed; what fetches them.

        In `slot` is the state behind the last of them, if the model keeps any and it is there.
        """

    def share(self, request_id: str) -> dict[str, Any]:
        """Lend what is lent under this id to one engine more, as long as if it were lent now; what fetches it."""

    def advance(self, request_id: str, num_computed: int, slot: int | None) -> None:
        """More of them are computed, or the state is."""

    def withdraw(self, request_id: str) -> None:
        """End a lease; when this returns nobody reads its blocks."""


MAX_LEASES = 1024  # each takes some 10 KiB until it ends


@dataclass(frozen=True, slots=True)
class _Held:
    prompt_hash: bytes
    block_ids: list[int]
    slots: list[int]  # of the state behind them, if the model keeps any


class LentBlocks:
    """Holders of blocks beside the sequences. Where blocks run out, the oldest give theirs back.

    So do they where slots run out, of which a lease has one if the model keeps states, and where there are too many.
    A prompt that is held is not held twice: its lease is shared.
    """

    def __init__(self, pool: BlockPool, slot_pool: BlockPool | None, lender: Lender) -> None:
        self._pool = pool
        self._slot_pool = slot_pool
        self._lender = lender
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by request, the oldest first
        self._by_prompt: dict[bytes, str] = {}  # which request's lease has the prompt of this hash
        # Of sequences that still run, and hold them themselves: what fetches them, by request.
        self._ahead: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[int]:
        """Block ids, each as often as it is lent."""
        return (block_id for held in self._held.values() for block_id in held.block_ids)

    def slots(self) -> Iterator[int]:
        """Slots of states, each as often as it is lent."""
        return (slot for held in self._held.values() for slot in held.slots)

    def lend(
        self, request_id: str, block_ids: list[int], hashes: list[bytes], slot: int | None
    ) -> dict[str, Any]:
        """Hold these blocks, and the state behind them, for another engine; what fetches them."""
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
        """Whether blocks are lent of a sequence that still runs."""
        return request_id in self._ahead

    def lend_ahead(
        self, request_id: str, block_ids: list[int], hashes: list[bytes], num_computed: int
    ) -> dict[str, Any]:
        """Lend blocks that their sequence holds, and has not computed all of; what fetches them."""
        found = self._lender.offer(request_id, block_ids, hashes, num_computed, None)
        self._ahead[request_id] = found
        return found

    def advance(self, request_id: str, num_computed: int) -> None:
        """More of what is lent ahead is computed."""
        self._lender.advance(request_id, num_computed, None)

    def take_back(self, request_id: str) -> None:
        """Its sequence gives back its blocks: what was lent ahead of them is lent no more."""
        if self._ahead.pop(request_id, None) is not None:
            self._lender.withdraw(request_id)

    def end(self, request_id: str) -> None:
        """Hold the blocks of one request no longer."""
        self._lender.withdraw(request_id)
        held = self._held.pop(request_id)
        if self._by_prompt.get(held.prompt_hash) == request_id:
            del self._by_prompt[held.prompt_hash]
        self._pool.release(reversed(held.block_ids))
        if self._slot_pool is not None:
            self._slot_pool.release(held.slots)

    def end_all(self) -> None:
        """Hold nothing any more."""
        for request_id in list(self._held):
            self.end(request_id)

    def make_room(self, pool: BlockPool, count: int, beside: Sequence[int]) -> bool:
        """Have so many of a pool free, others than `beside`; False, and no change, if that is not to be had."""
        lent = Counter(self.slots() if pool is self._slot_pool else self)
        only_lent = {b for b, num_lent in lent.items() if pool.num_holders(b) == num_lent}
        missing = count - pool.num_free + pool.num_free_among(beside)
        if len(only_lent.difference(beside)) < missing:
            return False
        while pool.num_free - pool.num_free_among(beside) < count:
            self.end(next(iter(self._held)))
        return True
