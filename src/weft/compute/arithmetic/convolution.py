"""Short convolutions in numpy: each channel of a row with the same channel of the previous rows.

The previous rows are in the same step, or in the states of blocks. A block's state has as many rows as a convolution
looks back; each new row replaces the oldest one. So a full block has the state at its end, from which any sequence can
continue, whichever sequence computed it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic import exact
from weft.compute.protocols.runner import Batch, FloatArray

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows of a step, and their places in the states of blocks."""

    rows: Index
    blocks: Index
    entries: Index


@dataclass(frozen=True, slots=True)
class _Tap:
    """The rows that are `back` rows before other rows: in the step, in blocks begun before it, or in full blocks."""

    back: int
    in_step: Index
    in_begun: _Places
    in_full: _Places


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """Places of the previous rows of each row of a step, oldest first, for one width; and the rows to store."""

    taps: tuple[_Tap, ...]
    stored: _Places


def plan_convolution(batch: Batch, block_size: int, width: int) -> ConvPlan:
    """Returns the plan of the convolutions of a step; all layers with this width use it."""
    lengths = np.diff(batch.query_starts)
    certain = lengths if batch.num_state_rows is None else batch.num_state_rows
    owners = np.repeat(np.arange(len(lengths)), lengths)
    positions = batch.positions.astype(np.intp)
    firsts = positions[batch.query_starts[:-1]][owners]
    keep = width - 1

    def places(rows: Index, at: Index) -> _Places:
        blocks = batch.block_tables[owners[rows], at // block_size].astype(np.intp)
        return _Places(rows, blocks, at % block_size % keep)

    taps = []
    for back in range(keep, 0, -1):
        at = positions - back
        outside = (at < firsts) & (at >= 0)
        begins_block = firsts % block_size == 0
        begun, full = (np.flatnonzero(outside & is_so) for is_so in (~begins_block, begins_block))
        in_step = np.flatnonzero(at >= firsts)
        taps.append(_Tap(back, in_step, places(begun, at[begun]), places(full, at[full])))
    ends = np.minimum((positions // block_size + 1) * block_size, firsts + certain[owners])
    stored = np.flatnonzero((positions >= ends - keep) & (positions < ends))
    return ConvPlan(tuple(taps), places(stored, positions[stored]))


def convolve(
    plan: ConvPlan,
    products: FloatArray,
    states: FloatArray,
    weights: FloatArray,
    bias: FloatArray | None,
) -> FloatArray:
    """Returns the convolution of `products` [rows, hidden] with `weights` [hidden, width]; updates `states`.

    `states` are [blocks, width - 1, hidden]. A block that was begun earlier belongs to its sequence, and is read before
    it is written. A full block may belong to another sequence that fills it in the same step, so it is read after the
    writes.
    """
    begun = [states[tap.in_begun.blocks, tap.in_begun.entries] for tap in plan.taps]
    states[plan.stored.blocks, plan.stored.entries] = products[plan.stored.rows]
    total = np.zeros_like(products)
    if bias is not None:
        total += bias
    for place, (tap, before) in enumerate(zip(plan.taps, begun, strict=True)):
        values = np.zeros_like(products)
        values[tap.in_step] = products[tap.in_step - tap.back]
        values[tap.in_begun.rows] = before
        values[tap.in_full.rows] = states[tap.in_full.blocks, tap.in_full.entries]
        total += values * weights[:, place]
    total += products * weights[:, -1]
    return total


@dataclass(frozen=True, slots=True)
class Channels:
    """The short convolution and the SiLU at the beginning of a recurrence; `weights` are [channels, width]."""

    weights: FloatArray
    bias: FloatArray | None

    def __call__(self, rows: FloatArray, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the result for successive rows [rows, channels] of one sequence, and the rest of the flat `state`.

        The convolution's part of `state` has the previous rows, oldest first, and is updated.
        """
        channels, width = self.weights.shape
        size = (width - 1) * channels
        before = state[:size].reshape(-1, channels)
        whole = np.concatenate([before, rows])
        before[:] = whole[len(rows) :]
        total = np.zeros_like(rows)
        if self.bias is not None:
            total += self.bias
        for place in range(width):
            total += whole[place : place + len(rows)] * self.weights[:, place]
        return exact.silu(total), state[size:]
