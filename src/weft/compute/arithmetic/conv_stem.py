"""Convolutions over time, with which a tower of sounds begins, as products of rows."""

from collections.abc import Callable, Sequence

import numpy as np

from weft.compute.arithmetic.activations import activate
from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.tower import TowerInputs
from weft.model.switches import Activation
from weft.model.towers.spec import STEM_WIDTH, Grid


def enter_stem(
    inputs: TowerInputs,
    positions: FloatArray,
    project: Callable[[str, FloatArray], FloatArray],
) -> tuple[FloatArray, Sequence[Grid]]:
    """Returns the rows of the first layer, and their grids; `project` computes a projection by its name."""
    sizes = [columns for _, columns, _ in inputs.grids]
    parts = np.split(inputs.patches, np.cumsum(sizes)[:-1])
    rows = [_enter(part, positions, project) for part in parts]
    grids = [(1, columns // 2, 1) for columns in sizes]
    return np.concatenate(rows), grids


def _enter(
    columns: FloatArray, positions: FloatArray, project: Callable[[str, FloatArray], FloatArray]
) -> FloatArray:
    rows = activate(Activation.GELU, project("patch", neighbours(columns, 1)))
    num_rows = len(columns) // 2
    seen = neighbours(rows, 2)[:num_rows]
    return activate(Activation.GELU, project("half", seen)) + positions[:num_rows]


def neighbours(rows: FloatArray, step: int) -> FloatArray:
    """Returns for every `step`th row its three neighbours, itself in the middle: [rows, channels * 3].

    The three numbers of a channel are adjacent, as in the kernel of a convolution. Neighbours beyond either end are 0.
    """
    padded = np.pad(rows, ((1, 1), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, STEM_WIDTH, axis=0)[::step]
    return np.ascontiguousarray(seen).reshape(len(seen), -1)
