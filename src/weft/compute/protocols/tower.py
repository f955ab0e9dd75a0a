"""`TowerRunner` and `SoundRunner`: the tower of a loaded model; `TowerInputs`: pictures or sounds, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from weft.compute.protocols.runner import FloatArray, Memory
from weft.model.spec import ModelSpec
from weft.model.towers.spec import Grid, Resampling, TowerSpec


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """Patches of the pictures of one or more items, in the order that `TowerSpec` describes.

    The patches of the first grid come first, then those of the next grid. An item that is divided into tiles has
    several grids, one after the other.
    """

    patches: FloatArray  # [patches, patch_dim]
    grids: Sequence[Grid]  # sizes in patches


@runtime_checkable
class TowerRunner(Protocol):
    """A runner of a model that has a vision tower."""

    def encode(self, inputs: TowerInputs) -> FloatArray:
        """Returns the tower's output rows of all items, [tokens, row_size]; they belong to the caller.

        The rows have the form of rows of the embedding table. The rows of a grid are bitwise independent of the other
        grids. Raises `ValueError` for inputs that contradict each other or the spec.
        """


@runtime_checkable
class SoundRunner(Protocol):
    """A runner of a model with cross-attention to what its tower makes of a sound."""

    def remember(self, columns: FloatArray) -> Memory:
        """Returns keys and values of cross-attention for a sound with these columns of a spectrogram, [columns, mels].

        They are for `Batch.memories` of this runner, in its own layout, and belong to the caller. Raises `ValueError`
        for a spectrogram of another shape than the tower takes.
        """

    def empty_memory(self) -> Memory:
        """Returns zeros of the same form, for a sound that cannot be computed."""


def as_embeddings(rows: FloatArray, spec: ModelSpec) -> FloatArray:
    """Returns a tower's rows divided by the factor with which the decoder multiplies embeddings."""
    if spec.embedding_multiplier != 1.0:
        rows[:, : spec.hidden_size] /= np.float32(spec.embedding_multiplier)
    return rows


def check_inputs(spec: TowerSpec, inputs: TowerInputs) -> None:
    """Raises `ValueError` for inputs that contradict each other or the spec."""
    patches = inputs.patches
    if patches.dtype != np.float32 or patches.ndim != 2 or patches.shape[1] != spec.patch_dim:
        raise ValueError(
            f"patches must be float32 [patches, {spec.patch_dim}]; they are {patches.dtype} {list(patches.shape)}"
        )
    for grid in inputs.grids:
        _check_grid(spec, grid)
    num_patches = sum(t * h * w for t, h, w in inputs.grids)
    if not num_patches or num_patches != len(patches):
        raise ValueError(
            f"grids must have as many patches in total as patches has rows, and at least one: there are {len(patches)} "
            f"rows, and the grids have {num_patches}"
        )


def _check_grid(spec: TowerSpec, grid: Grid) -> None:
    if spec.has_conv_stem:
        _check_sound(spec, grid)
        return
    if min(grid) < 1 or grid[1] % spec.merge or grid[2] % spec.merge:
        raise ValueError(
            f"grids must have rows and columns in multiples of {spec.merge}; one is {list(grid)}"
        )
    side = spec.num_positions
    if side and spec.resampling is Resampling.EXACT and grid[1:] != (side, side):
        raise ValueError(f"grids must have {side} rows and columns; one is {list(grid)}")


def _check_sound(spec: TowerSpec, grid: Grid) -> None:
    if spec.stem_channels:
        if grid[0] != 1 or grid[1] < 1 or grid[2] != 1:
            raise ValueError(f"grids must be [1, columns, 1]; one is {list(grid)}")
        return
    most = 2 * spec.num_positions
    least = 2 * spec.merge if spec.has_short_sounds else most
    frames, columns, width = grid
    if (frames, width) != (1, 1) or not least <= columns <= most:
        allowed = f"{least} to {most}" if least < most else f"{most}"
        raise ValueError(f"grids must have {allowed} columns; one is {list(grid)}")
