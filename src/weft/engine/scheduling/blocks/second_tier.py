"""`SecondTier`: where blocks lie that are not in the pool, and states with them, as the scheduler sees it."""

from typing import Protocol

from weft.core.values.types import Request
from weft.engine.scheduling.blocks.lent_blocks import Lender
from weft.engine.scheduling.sequence import Sequence


class SecondTier(Protocol):
    """Where blocks may lie that are not in the pool."""

    @property
    def keeps_evicted(self) -> bool:
        """Whether it wants the blocks that leave the pool."""

    @property
    def lender(self) -> Lender | None:
        """What lends blocks of the pool to others."""

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        """Begin to read the blocks that these begin with and it has; False if it has not the first.

        Of a model with states the last of them is one with a state, which is read too. `num_in_pool` of the
        blocks need not be read: only states are missing there.
        """

    def num_placed(self, sequence: Sequence) -> int:
        """How many blocks of what it reads it writes into the pool by itself, where the sequence is to hold them."""

    def cancel_fetch(self, sequence: Sequence) -> None:
        """Read no more for it, and write no more into its blocks."""

    def forget(self, request: Request) -> None:
        """A request has ended."""

    def clear(self) -> None:
        """Forget everything, what is being read too."""
