"""`SecondTier`: the scheduler's view of blocks and states outside the pool."""

from typing import Protocol

from weft.core.values.types import Request
from weft.engine.scheduling.blocks.lent_blocks import Lender
from weft.engine.scheduling.sequence import Sequence


class SecondTier(Protocol):
    """Places of blocks outside the pool: a second tier, or other engines."""

    @property
    def keeps_evicted(self) -> bool:
        """True if the tier wants evicted blocks."""

    @property
    def lender(self) -> Lender | None:
        """Lends blocks of the pool to other engines; None if there is no lending."""

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        """Begins to read as many of these first blocks as it has; False if it does not have the first.

        For a model with states it reads up to a block that has a state, and the state too. The first `num_in_pool`
        blocks are in the pool already: only a state is missing there.
        """

    def num_placed(self, sequence: Sequence) -> int:
        """Returns how many blocks the fetch writes directly into the pool, into blocks that the sequence must hold."""

    def cancel_fetch(self, sequence: Sequence) -> None:
        """Ends the sequence's fetch; its blocks are not written any more."""

    def forget(self, request: Request) -> None:
        """Notes that a request has ended."""

    def clear(self) -> None:
        """Forgets all blocks, and cancels fetches."""
