"""Computes the tower for the items that a step begins with."""

from collections.abc import Iterable

import numpy as np

from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.tower import TowerInputs, TowerRunner
from weft.core.values.pictures import PicturesConfig
from weft.engine.scheduling.sequence import ItemOutput
from weft.media.processors.patches import to_patches


def compute_outputs(runner: object, outputs: Iterable[ItemOutput], config: PicturesConfig) -> None:
    """Fills in the outputs, one item after the other: the tower's work on an item is bounded, that on all is not."""
    assert isinstance(runner, TowerRunner), "the runner's model must accept pictures"
    for output in outputs:
        patches, grids = to_patches(output.item.tiles, config.settings.pixels)
        rows = runner.encode(TowerInputs(patches, grids))
        assert rows.shape == (output.item.num_rows, config.row_size), "the tower made other rows"
        output.embeds, output.deep_embeds = _split(rows, config.hidden_size)


def _split(rows: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    """Splits rows into the embeddings of tokens, [rows, size], and what later layers add, [levels, rows, size]."""
    parts = rows.reshape(len(rows), -1, size).swapaxes(0, 1)
    return np.ascontiguousarray(parts[0]), np.ascontiguousarray(parts[1:])
