"""`SecondTier`: the scheduler's view of blocks and states outside the pool."""

from typing import Protocol

from weft.core.values.types import Request
from weft.engine.scheduling.blocks.lent_blocks import Lender
from weft.engine.scheduling.sequence import Sequence


class SecondTier(Protocol):
    """Storage of blocks outside the pool: a second tier, or the pools of other engines."""

    @property
    def keeps_evicted(self) -> bool:
        """True if the tier wants evicted blocks."""

    @property
    def lender(self) -> Lender | None:
        """Component that lends the pool's blocks to other engines; None if the engine lends no blocks."""

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        """Starts to fetch the longest prefix of these blocks that the tier has. Returns False if the tier lacks the
        first block.

        In a model with states the fetch ends at a block that has a state, and includes this state. The first
        `num_in_pool` blocks are in the pool already: for these the fetch reads only the state.
        """

    def num_placed(self, sequence: Sequence) -> int:
        """Returns the number of blocks that the fetch writes directly into the pool. The sequence must hold these
        blocks.
        """

    def cancel_fetch(self, sequence: Sequence) -> None:
        """Ends the sequence's fetch. The tier writes no further blocks of the sequence."""

    def forget(self, request: Request) -> None:
        """Drops the tier's data about a request that has ended."""

    def clear(self) -> None:
        """Forgets all blocks, and cancels fetches."""
