"""Positions of frame, row and column (M-RoPE), of a prompt with pictures and of the tokens after it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.model.towers.spec import Grid


@dataclass(frozen=True, slots=True)
class PlacedGrid:
    """A grid of patches whose tokens begin at index `offset` of the prompt.

    `time_step` is the difference of the positions of two frames of patches that follow each other.
    """

    offset: int
    grid: Grid
    time_step: float = 1.0


def rope_positions(
    num_tokens: int, grids: Sequence[PlacedGrid], merge: int
) -> tuple[NDArray[np.int32], int]:
    """Returns the positions of frame, row and column of each token of a prompt, [tokens, 3], and the offset of later
    tokens.

    In text all three positions increase by one per token. The positions of a grid's tokens count from the grid's first
    position, along each side separately; the text after the grid continues after the longer side of a frame, even if
    the positions of its frames go further. A token at
    index i after the prompt has the position i + offset in all three. `grids` are in the order of their offsets.
    """
    positions = np.empty((num_tokens, 3), np.int32)
    done = begin = 0  # number of tokens so far, and position of the next token
    for placed in grids:
        text = placed.offset - done
        _count(positions[done : placed.offset], begin)
        begin += text
        frames, rows, columns = placed.grid
        sides = (frames, rows // merge, columns // merge)
        inside = np.indices(sides, np.int32).reshape(3, -1).T
        # In float32, as in training: a product that is close to an integer may fall to either side of it.
        inside[:, 0] = inside[:, 0].astype(np.float32) * np.float32(placed.time_step)
        done = placed.offset + len(inside)
        positions[placed.offset : done] = inside + begin
        begin += max(sides[1:])
    _count(positions[done:], begin)
    offset = int(positions.max()) + 1 - num_tokens if num_tokens else 0
    return positions, offset


def _count(positions: NDArray[np.int32], begin: int) -> None:
    positions[:] = np.arange(begin, begin + len(positions), dtype=np.int32)[:, None]
