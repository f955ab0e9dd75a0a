"""Positions in three rows, compared with transformers' `get_rope_index`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLModel, Qwen3VLModel

from weft.model.towers.positions import PlacedGrid, rope_positions

_MERGE = 2
PROMPTS = {
    "text": ((7,), ()),
    "one": ((3, 4), ((1, 4, 6),)),
    "at the start": ((0, 5), ((1, 6, 2),)),
    "at the end": ((5, 0), ((1, 2, 2),)),
    "three": ((2, 1, 3, 6), ((1, 4, 4), (1, 2, 10), (1, 8, 2))),
}


@pytest.mark.parametrize("model", [Qwen2_5_VLModel, Qwen3VLModel])
@pytest.mark.parametrize(("texts", "grids"), PROMPTS.values(), ids=PROMPTS.keys())
def test_positions_are_those_of_transformers(model, texts, grids):
    """Every token of a prompt with pictures has the same three positions, and later tokens the same offset."""
    types, placed = _prompt(texts, grids)
    config = SimpleNamespace(
        vision_config=SimpleNamespace(spatial_merge_size=_MERGE, tokens_per_second=2)
    )
    itself = SimpleNamespace(config=config)
    itself.get_vision_position_ids = lambda *args, **kwargs: model.get_vision_position_ids(
        itself, *args, **kwargs
    )
    expected, delta = model.get_rope_index(
        itself,
        input_ids=torch.zeros((1, len(types)), dtype=torch.long),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(grids).reshape(-1, 3),
    )
    positions, offset = rope_positions(len(types), placed, _MERGE)
    np.testing.assert_array_equal(positions.T, expected[:, 0].numpy())
    assert offset == delta.item()


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.37])
def test_positions_of_videos_grow_with_time(seconds):
    """A picture and two videos: frames are as far apart as their seconds say; text goes on after a frame's sides."""
    grids = ((1, 4, 4), (5, 4, 6), (3, 8, 2))
    types, placed = _prompt((2, 1, 3, 4), grids)
    steps = [1.0, 2 * seconds, 4 * seconds]
    placed = [
        PlacedGrid(one.offset, one.grid, step) for one, step in zip(placed, steps, strict=True)
    ]
    for one in placed[1:]:
        count = one.grid[0] * one.grid[1] * one.grid[2] // _MERGE**2
        types[one.offset : one.offset + count] = [2] * count
    config = SimpleNamespace(
        vision_config=SimpleNamespace(spatial_merge_size=_MERGE, tokens_per_second=2)
    )
    itself = SimpleNamespace(config=config)
    itself.get_vision_position_ids = lambda *args, **kwargs: (
        Qwen2_5_VLModel.get_vision_position_ids(itself, *args, **kwargs)
    )
    expected, delta = Qwen2_5_VLModel.get_rope_index(
        itself,
        input_ids=torch.zeros((1, len(types)), dtype=torch.long),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(grids[:1]),
        video_grid_thw=torch.tensor(grids[1:]),
        second_per_grid_ts=torch.tensor([seconds, 2 * seconds]),
    )
    positions, offset = rope_positions(len(types), placed, _MERGE)
    np.testing.assert_array_equal(positions.T, expected[:, 0].numpy())
    assert offset == delta.item()


def test_an_empty_prompt_has_no_offset():
    """A sequence without tokens begins at position 0."""
    positions, offset = rope_positions(0, (), _MERGE)
    assert positions.shape == (0, 3)
    assert offset == 0


def _prompt(texts, grids):
    """Returns the type of each token, 1 for pictures, and the grids in their places."""
    types, placed = [0] * texts[0], []
    for grid, text in zip(grids, texts[1:], strict=True):
        placed.append(PlacedGrid(len(types), grid))
        types += [1] * (grid[0] * grid[1] * grid[2] // _MERGE**2) + [0] * text
    return types, placed
