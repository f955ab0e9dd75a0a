"""Prompts with pictures for runners: placeholders, random patches, and steps of a part of a prompt."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tests.compute.steps import Part, step
from weft.compute.protocols.runner import Batch
from weft.compute.protocols.tower import TowerInputs
from weft.model.spec import ModelSpec
from weft.model.towers.positions import PlacedGrid, rope_positions


@dataclass(frozen=True, slots=True)
class PicturePrompt:
    """Token ids with a run of placeholders for each grid, and the patches of all grids."""

    token_ids: list[int]
    placed: tuple[PlacedGrid, ...]
    inputs: TowerInputs


def picture_prompt(spec: ModelSpec, texts, grids, rng, limit: int = 290) -> PicturePrompt:
    """Random texts of so many tokens around random pictures of these grids."""
    tower = spec.tower
    ids, placed = rng.integers(0, limit, texts[0]).tolist(), []
    for grid, text in zip(grids, texts[1:], strict=True):
        ids += [] if tower.start_token_id is None else [tower.start_token_id]
        placed.append(PlacedGrid(len(ids), grid))
        ids += [tower.image_token_id] * tower.num_tokens([grid])
        ids += [] if tower.end_token_id is None else [tower.end_token_id]
        ids += rng.integers(0, limit, text).tolist()
    count = sum(t * h * w for t, h, w in grids)
    patches = rng.standard_normal((count, tower.patch_dim)).astype(np.float32)
    return PicturePrompt(ids, tuple(placed), TowerInputs(patches, list(grids)))


class PictureSequence:
    """A prompt with pictures in a runner, and the tokens that follow it."""

    def __init__(self, runner, prompt: PicturePrompt, rows: np.ndarray | None = None) -> None:
        self._runner, self._spec, self.prompt = runner, runner.spec, prompt
        self.token_ids = list(prompt.token_ids)
        tower = self._spec.tower
        self._rows = runner.encode(prompt.inputs) if rows is None else rows
        self._owner = np.full(len(self.token_ids), -1)
        for number, placed in enumerate(prompt.placed):
            count = tower.num_tokens([placed.grid])
            self._owner[placed.offset : placed.offset + count] = number
        self._row_of = np.cumsum(self._owner >= 0) - 1
        if self._spec.rope_sections is not None:
            self._positions, self._offset = rope_positions(
                len(self.token_ids), prompt.placed, tower.merge
            )

    def batch(self, start: int, end: int, blocks: list[int], block_size: int) -> Batch:
        """The step of tokens [start, end), with logits of all rows."""
        part = Part(self.token_ids, len(self.prompt.token_ids), blocks, start, end)
        plain = step([part], block_size)
        places = np.arange(start, end)
        inside = places < len(self._owner)
        owners = np.where(inside, self._owner[np.minimum(places, len(self._owner) - 1)], -1)
        embed_rows = np.flatnonzero(owners >= 0).astype(np.int32)
        changes = {}
        if self._spec.rope_sections is not None:
            later = np.repeat((places + self._offset)[:, None], 3, axis=1)
            early = self._positions[np.minimum(places, len(self._owner) - 1)]
            changes["rope_positions"] = np.where(inside[:, None], early, later).astype(np.int32)
        if len(embed_rows):
            rows = self._rows[self._row_of[places[embed_rows]]]
            levels = rows.reshape(len(rows), -1, self._spec.hidden_size)
            changes["embed_rows"] = embed_rows
            changes["embeds"] = np.ascontiguousarray(levels[:, 0])
            if levels.shape[1] > 1:
                changes["deep_embeds"] = np.ascontiguousarray(levels[:, 1:].transpose(1, 0, 2))
        if self._spec.sees_items_whole and len(embed_rows):
            ends = places.copy()
            for number in set(owners[embed_rows].tolist()):
                ends[owners == number] = np.flatnonzero(self._owner == number).max()
            changes["attend_ends"] = ends.astype(np.int32)
        return replace(plain, **changes)

    def run(self, cuts, *, block_size: int = 16, first_block: int = 0) -> np.ndarray:
        """Logits of all tokens, computed in steps that end at `cuts`."""
        count = -(-512 // block_size)
        self._runner.allocate_kv(
            num_blocks=count + first_block, block_size=block_size, num_state_slots=1
        )
        self._blocks = list(range(first_block, count + first_block))
        self._block_size = block_size
        bounds = [0, *cuts, len(self.token_ids)]
        return np.concatenate(
            [
                self._runner.forward(self.batch(a, b, self._blocks, block_size))
                for a, b in pairwise(bounds)
            ]
        )

    def follow(self, token_id: int) -> np.ndarray:
        """Logits after one more token."""
        self.token_ids.append(token_id)
        end = len(self.token_ids)
        return self._runner.forward(self.batch(end - 1, end, self._blocks, self._block_size))[0]
