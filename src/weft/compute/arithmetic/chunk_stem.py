"""Convolutions over time and mels, with which a tower of sounds in chunks begins, as products of rows."""

from collections.abc import Callable, Sequence

import numpy as np

from weft.compute.arithmetic.activations import activate
from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.tower import TowerInputs
from weft.core.values.pictures import rows_of_chunk
from weft.model.switches import Activation
from weft.model.towers.spec import CHUNK_COLUMNS, STEM_WIDTH, Grid, TowerSpec

_CONVOLUTIONS = ("patch", "half", "quarter")
_MAX_TIMESCALE = 10_000


def enter_chunks(
    spec: TowerSpec, inputs: TowerInputs, project: Callable[[str, FloatArray], FloatArray]
) -> tuple[FloatArray, Sequence[Grid]]:
    """Returns the rows of the first layer, and their grids; `project` computes a projection by its name."""
    sizes = [columns for _, columns, _ in inputs.grids]
    positions = _sinusoids(rows_of_chunk(CHUNK_COLUMNS), spec.hidden_size)
    rows = [
        _enter(sound[begin : begin + CHUNK_COLUMNS], positions, project)
        for sound in np.split(inputs.patches, np.cumsum(sizes)[:-1])
        for begin in range(0, len(sound), CHUNK_COLUMNS)
    ]
    return np.concatenate(rows), [(1, spec.num_rows(columns), 1) for columns in sizes]


def _enter(
    columns: FloatArray, positions: FloatArray, project: Callable[[str, FloatArray], FloatArray]
) -> FloatArray:
    """Returns the rows of a chunk: all of it is computed, and the rows of silence behind the sound are dropped."""
    seen = np.zeros((CHUNK_COLUMNS, columns.shape[1], 1), np.float32)  # [time, mels, channels]
    seen[: len(columns), :, 0] = columns
    for name in _CONVOLUTIONS:
        places = _neighbours(seen)
        rows = project(name, np.ascontiguousarray(places).reshape(-1, np.prod(places.shape[2:])))
        seen = activate(Activation.GELU, rows).reshape(*places.shape[:2], -1)
    joined = np.ascontiguousarray(seen.swapaxes(1, 2)).reshape(len(seen), -1)
    return (project("stem", joined) + positions)[: rows_of_chunk(len(columns))]


def _neighbours(seen: FloatArray) -> FloatArray:
    """Returns the 3 x 3 neighbours of every second place, as in the kernel of a convolution: [time, mels, channels, 3,
    3], the mels before the time. Neighbours beyond an end are 0.
    """
    padded = np.pad(seen, ((1, 1), (1, 1), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (STEM_WIDTH, STEM_WIDTH), axis=(0, 1))
    return view[::2, ::2].swapaxes(3, 4)


def _sinusoids(length: int, size: int) -> FloatArray:
    """Returns sines and cosines of each place, [places, size]."""
    half = size // 2
    step = np.log(_MAX_TIMESCALE) / max(1, half - 1)
    scales = np.exp(np.float32(-step) * np.arange(half, dtype=np.float32))
    times = np.arange(length, dtype=np.float32)[:, None] * scales
    return np.concatenate([np.sin(times), np.cos(times)], axis=1).astype(np.float32)
