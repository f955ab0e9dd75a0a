"""Grids of patches: order of patches, windows, rotary frequencies, and learned positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import FloatArray, IntArray
from weft.model.towers.spec import Grid, Resampling, TowerRope, TowerSpec

Index = NDArray[np.intp]


def places(grid: Grid, merge: int) -> Index:
    """Returns row and column of each patch of one frame, [rows * columns, 2], in merge order: window by window."""
    _, rows, columns = grid
    index = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return index.transpose(1, 3, 2, 4, 0).reshape(-1, 2)


def rotary_places(spec: TowerSpec, grid: Grid) -> Index:
    """Returns row and column of each patch of one frame for rotary embeddings, [patches, 2]: zeros without them."""
    if spec.rope is TowerRope.NONE:
        return np.zeros((grid[1] * grid[2], 2), np.intp)
    return places(grid, spec.merge)


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of patches that attend to each other: `order` lists the patches segment by segment."""

    order: Index
    lengths: Index


def frames(grid: Grid) -> Segments:
    """Returns the frames of a grid as segments."""
    count, rows, columns = grid
    return Segments(np.arange(count * rows * columns), np.full(count, rows * columns))


def windows(grid: Grid, merge: int, window: int) -> Segments:
    """Returns the windows of a grid as segments: squares of `window` x `window` tokens, smaller at the edges."""
    count, rows, columns = grid
    height, width = rows // merge, columns // merge
    row, column = np.divmod(np.arange(height * width), width)
    across = -(-width // window)
    number = row // window * across + column // window  # of the token's window
    tokens = np.argsort(number, kind="stable")
    each = merge**2
    of_frame = (tokens[:, None] * each + np.arange(each)).reshape(-1)
    starts = np.arange(count)[:, None] * (rows * columns)
    return Segments((starts + of_frame).reshape(-1), np.tile(np.bincount(number) * each, count))


def rotary_pairs(spec: TowerSpec) -> tuple[FloatArray, IntArray]:
    """Returns, for each rotary pair of a head, radians per position, and the position that it uses: 1 row, 2 column."""
    half = spec.head_dim // 2
    match spec.rope:
        case TowerRope.NONE:
            return np.zeros(0, np.float32), np.zeros(0, np.int32)
        case TowerRope.AXIAL:
            one = spec.rope_theta ** -(np.arange(0, half, 2) / half)
            frequencies = np.concatenate([one, one])
        case TowerRope.ALTERNATING:
            every = spec.rope_theta ** -(np.arange(0, spec.head_dim, 2) / spec.head_dim)
            frequencies = np.concatenate([every[::2], every[1::2]])
        case _:
            assert_never(spec.rope)
    axes = np.repeat(np.array([1, 2], np.int32), [half - half // 2, half // 2])
    return frequencies.astype(np.float32), axes


def with_class_rows(rows: FloatArray, grids: Sequence[Grid], first: FloatArray) -> FloatArray:
    """Returns the rows of all pictures, each behind the row `first`, [1, hidden]."""
    ends = np.cumsum([height * width for _, height, width in grids])[:-1]
    return np.concatenate([part for rows in np.split(rows, ends) for part in (first, rows)])


def without_class_rows(rows: FloatArray, grids: Sequence[Grid]) -> FloatArray:
    """Returns the rows of all pictures without the first one of each; the grids are those of `class_grids`."""
    counts = [width for _, _, width in grids]
    patches: FloatArray = np.delete(rows, np.cumsum([0, *counts[:-1]]), axis=0)
    return patches


def class_grids(grids: Sequence[Grid]) -> list[Grid]:
    """Returns grids of one row each that have one place more than the pictures have patches."""
    return [(1, 1, height * width + 1) for _, height, width in grids]


def learned_positions(spec: TowerSpec, table: FloatArray, grid: Grid) -> FloatArray:
    """Returns the learned positions of the patches of one frame, [rows * columns, hidden].

    `table` has those of patches alone.
    """
    index = places(grid, spec.merge)
    side = spec.num_positions
    match spec.resampling:
        case Resampling.EXACT:
            at = index[:, 0] * side + index[:, 1]
        case Resampling.BUCKETS:
            row, column = (
                _buckets(size, side)[index[:, axis]] for axis, size in enumerate(grid[1:])
            )
            at = row * side + column
        case Resampling.CORNERS:
            return _bilinear(table, side, grid, index)
        case Resampling.SMOOTH:
            return _smooth(table, side, grid)[index[:, 0], index[:, 1]]
        case _:
            assert_never(spec.resampling)
    rows: FloatArray = table[at]
    return rows


def _buckets(size: int, side: int) -> Index:
    """Returns the index of the learned position for each place along a side of `size` patches."""
    # The products are rounded as in training: a place on a boundary may fall to either side of the boundary.
    fractions = np.arange(size, dtype=np.float32) * (np.float32(1) / np.float32(size))
    boundaries = (1 / side + np.arange(side - 1) * (1 / side)).astype(np.float32)
    index: Index = np.searchsorted(
        boundaries, np.minimum(fractions, np.float32(1 - 1e-6)), side="right"
    )
    return index


def _bilinear(table: FloatArray, side: int, grid: Grid, index: Index) -> FloatArray:
    taps = [_taps(size, side) for size in grid[1:]]
    result = np.zeros((len(index), table.shape[1]), np.float32)
    for row, row_weight in taps[0]:
        for column, column_weight in taps[1]:
            at = row[index[:, 0]] * side + column[index[:, 1]]
            weight = row_weight[index[:, 0]] * column_weight[index[:, 1]]
            result += table[at] * weight[:, None]
    return result


def _smooth(table: FloatArray, side: int, grid: Grid) -> FloatArray:
    """Returns the table of learned positions resampled to [rows, columns, hidden]."""
    by_row, by_column = (_smooth_weights(size, side) for size in grid[1:])
    rows = (by_row @ table.reshape(side, -1)).reshape(grid[1], side, -1)
    resampled: FloatArray = np.matmul(by_column, rows)
    return resampled


def _smooth_weights(size: int, side: int) -> FloatArray:
    """Returns the weight of each learned position for each place along a side, [size, side]."""
    scale = np.float32(side) / np.float32(size)
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    away = np.abs(np.arange(side, dtype=np.float32) - centres[:, None])
    weights = np.maximum(1 - away / max(scale, np.float32(1)), 0).astype(np.float32)
    normalized: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return normalized


def _taps(size: int, side: int) -> list[tuple[Index, FloatArray]]:
    """Returns the two learned positions nearest to each place along a side, with their weights."""
    source = np.arange(size, dtype=np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    low = np.floor(source)
    above = source - low
    first = low.astype(np.intp)
    return [(first, 1 - above), (np.minimum(first + 1, side - 1), above)]
