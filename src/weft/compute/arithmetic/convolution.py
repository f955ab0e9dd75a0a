"""Short convolutions in numpy: each channel of a row with the same channel of the rows just before it.

The previous rows are in the same step, or in the states of blocks. A block has room for as many rows as a convolution
looks back at; the row of a position replaces the one that is no longer needed. So a full block holds the state at its
end, from which any sequence can continue, whoever computed it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic import exact
from weft.compute.protocols.runner import Batch, FloatArray

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows of a step, and the places in states that belong to them."""

    rows: Index
    blocks: Index
    entries: Index


@dataclass(frozen=True, slots=True)
class _Tap:
    """The rows that are `back` rows before others: in the step, in blocks begun before it, or in full blocks."""

    back: int
    in_step: Index
    in_begun: _Places
    in_full: _Places


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """The places of the previous rows of each row of a step, for one width, oldest first; and the rows to store."""

    taps: tuple[_Tap, ...]
    stored: _Places


def plan_convolution(batch: Batch, block_size: int, width: int) -> ConvPlan:
    """Finds every row's predecessors once for all layers."""
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
    """Convolves `products` [rows, hidden] with `weights` [hidden, width]; updates `states` [blocks, width - 1,
    hidden].

    A block that was begun belongs to its sequence, and is read before it is written. A full block may belong to
    another sequence that fills it in this very step, so it is read afterwards.
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
    """The short convolution and SiLU that a recurrence begins with; `weights` are [channels, width]."""

    weights: FloatArray
    bias: FloatArray | None

    def __call__(self, rows: FloatArray, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the result for one sequence's successive rows [rows, channels], and the rest of the flat
        `state`.

        The convolution's part of `state` holds the rows just before, oldest first, and is updated.
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
