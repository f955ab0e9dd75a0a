"""Pieces of the second tier on their way: read for a sequence, or waiting to be written."""

from dataclasses import dataclass, field
from typing import NamedTuple

from weft.compute.host_blocks import Bytes
from weft.core.values.kv_cache import BlockStored
from weft.engine.scheduling.sequence import Sequence


class Piece(NamedTuple):
    """A block of the second tier, or the state after that block."""

    block_hash: bytes
    is_state: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """A read for one sequence. Other sequences that need its first piece wait until the read ends."""

    sequence: Sequence
    pieces: list[Piece]
    num_read: int = 0
    followers: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Data that waits to be written."""

    stored: BlockStored | None  # None for a state
    data: Bytes


@dataclass(frozen=True, slots=True)
class Arrived:
    """The next piece that was read for a sequence; None after the last piece: then the sequence returns to the queue.

    The data is in `data`, or already in `place`, the sequence's block or slot. An `error` ends the sequence.
    """

    sequence: Sequence
    piece: Piece | None
    data: Bytes | None
    is_last: bool
    error: str | None = None
    place: int | None = None
