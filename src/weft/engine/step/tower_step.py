"""Computes the vision tower for the media items that begin in a step."""

import logging
from collections.abc import Iterable

import numpy as np

from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.tower import SoundRunner, TowerInputs, TowerRunner
from weft.core.values.media import WORDS
from weft.core.values.pictures import (
    ItemsConfig,
    PlacedItem,
    SoundEnds,
    SoundsConfig,
    Spectrograms,
    TowerConfig,
)
from weft.engine.scheduling.plan import FailedRow, Plan, Result
from weft.engine.scheduling.sequence import ItemOutput
from weft.engine.scheduling.tower_outputs import failures
from weft.media.processors.patches import to_patches

log = logging.getLogger("weft.engine")


def compute_outputs(runner: object, outputs: Iterable[ItemOutput], config: TowerConfig) -> None:
    """Fills in the outputs, one item after the other: the tower's work on an item is bounded, that on all is not.

    An item that the tower cannot compute fails its own requests: the step computes zeros in its place.
    """
    if isinstance(config, ItemsConfig):
        _see(runner, outputs, config)
    else:
        _hear(runner, outputs, config)


def _hear(runner: object, outputs: Iterable[ItemOutput], config: SoundsConfig) -> None:
    assert isinstance(runner, SoundRunner), "the runner's model must accept sounds"
    for output in outputs:
        columns = np.frombuffer(output.item.columns, np.float32).reshape(-1, config.num_mels)
        try:
            output.memory = runner.remember(columns)
        # As below.
        except Exception as error:
            log.exception("the encoder could not compute the sound %s", output.item.hash)
            output.error = f"file: the model could not compute this sound: {type(error).__name__}"
            output.memory = runner.empty_memory()


def _see(runner: object, outputs: Iterable[ItemOutput], config: ItemsConfig) -> None:
    assert isinstance(runner, TowerRunner), "the runner's model must accept pictures"
    for output in outputs:
        try:
            rows = _compute(runner, output, config)
        # The tower is the root of its item's work: any error, lack of memory too, ends the item's requests alone.
        except Exception as error:
            log.exception("the tower could not compute the item %s", output.item.hash)
            modality = output.item.modality
            output.error = f"{modality}: the model could not compute this {WORDS[modality]}: {type(error).__name__}"
            rows = np.zeros((output.item.num_rows, config.row_size), np.float32)
        output.embeds, output.deep_embeds = _split(rows, config.hidden_size)


def with_failed_items(plan: Plan, results: list[Result], block_size: int) -> list[Result]:
    """Returns the results, with an error for each sequence that needs an output which the tower could not compute."""
    errors = failures(plan, block_size)
    if not errors:
        return results
    return [
        FailedRow(errors[entry.sequence]) if entry.sequence in errors else result
        for entry, result in zip(plan.entries, results, strict=True)
    ]


def _compute(runner: TowerRunner, output: ItemOutput, config: ItemsConfig) -> FloatArray:
    rows = runner.encode(_inputs(output.item, config))
    assert rows.shape == (output.item.num_rows, config.row_size), "the tower made other rows"
    return rows


def _inputs(item: PlacedItem, config: ItemsConfig) -> TowerInputs:
    settings = config.settings
    if item.patches:
        patches = np.frombuffer(item.patches, np.float32)
        num_patches = sum(frames * rows * columns for frames, rows, columns in item.grids)
        return TowerInputs(patches.reshape(num_patches, -1), item.grids)
    if not isinstance(settings, Spectrograms):
        return TowerInputs(*to_patches(item.tiles, config.pixels(item.modality)))
    columns = np.frombuffer(item.columns, np.float32).reshape(-1, settings.num_mels)
    is_whole = settings.ends is SoundEnds.WHOLE
    num_windows = len(columns) // settings.num_columns if is_whole else 1
    return TowerInputs(columns, [(1, len(columns) // num_windows, 1)] * num_windows)


def _split(rows: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    """Splits the tower's rows into the tokens' embeddings, [rows, size], and the parts for later layers, [levels,
    rows, size].
    """
    parts = rows.reshape(len(rows), -1, size).swapaxes(0, 1)
    return np.ascontiguousarray(parts[0]), np.ascontiguousarray(parts[1:])
