"""`PictureRunner`: a `TowerRunner` of which a wrong, missing or misplaced row of the tower cannot go unseen."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from tests.doubles.fake_runner import FakeRunner
from weft.compute.protocols.runner import Batch, FloatArray
from weft.compute.protocols.tower import TowerInputs
from weft.core.values.pictures import (
    ItemsConfig,
    ItemTokens,
    NativeSize,
    Pixels,
    PlacedItem,
    Tile,
)

PLACEHOLDER = 60
HIDDEN, LEVELS = 2, 1


def items_config(**changes) -> ItemsConfig:
    """Pictures of windows of 2 x 2 patches of 2 x 2 pixels: 16 pixels a row of the tower."""
    pixels = Pixels(patch_size=2, merge_size=2)
    values = {
        "settings": NativeSize(pixels=pixels, min_pixels=1, max_pixels=10_000),
        "tokens": ItemTokens(anchor=PLACEHOLDER, placeholder=PLACEHOLDER),
        "output_bytes": 1 << 20,
        "max_step_rows": 64,
        "hidden_size": HIDDEN,
        "row_size": HIDDEN * (1 + LEVELS),
        "has_rope_sections": True,
    }
    return ItemsConfig(**values | changes)


def placed(seed: int, start: int, rows: int = 2, columns: int = 2) -> PlacedItem:
    """A picture of so many rows and columns of windows, at these tokens of a prompt."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4 * rows, 4 * columns, 3), np.uint8)
    tile = Tile(4 * rows, 4 * columns, pixels.tobytes())
    return PlacedItem(
        start=start,
        num_tokens=rows * columns,
        modality="image",
        hash=hashlib.sha256(tile.pixels).hexdigest(),
        runs=[(0, rows * columns)],
        tiles=[tile],
    )


class PictureRunner(FakeRunner):
    """K/V of a row are a hash of its token, or of its row of the tower, and of its positions.

    `encoded` are the numbers of windows of each item that the tower computed. The tower fails on items of `broken`
    windows: it raises `failure`, or without one returns a row too few.
    """

    def __init__(self, vocab_size: int = 64) -> None:
        super().__init__(vocab_size)
        self.encoded: list[int] = []
        self.broken: int | None = None
        self.failure: Exception | None = None

    def encode(self, inputs: TowerInputs) -> FloatArray:
        """See `TowerRunner`: a row is made of its four patches alone."""
        num_rows = sum(h * w // 4 for _, h, w in inputs.grids)
        sums = inputs.patches.reshape(num_rows, -1).sum(1)
        self.encoded.append(num_rows)
        if num_rows == self.broken:
            if self.failure is not None:
                raise self.failure
            sums = sums[1:]
        return np.stack([sums, 2 * sums, 3 * sums, 4 * sums], 1).astype(np.float32)

    def _store(self, batch: Batch) -> None:
        super()._store(batch)
        self._slots[batch.slots] = [self._content(batch, row) for row in range(len(batch.slots))]

    def _content(self, batch: Batch, row: int) -> int:
        for array in (batch.embeds, batch.deep_embeds, batch.rope_positions, batch.attend_ends):
            assert array is None or array.flags.c_contiguous, "backends take arrays without gaps"
        given = [] if batch.embed_rows is None else batch.embed_rows.tolist()
        parts = [int(batch.token_ids[row])]
        if row in given:
            place = given.index(row)
            parts = [*batch.embeds[place].tolist(), *batch.deep_embeds[:, place].ravel().tolist()]
        rope = (
            [batch.positions[row]] * 3
            if batch.rope_positions is None
            else batch.rope_positions[row]
        )
        digest = hashlib.sha256(repr((parts, [int(p) for p in rope])).encode()).digest()
        return int.from_bytes(digest[:7], "big")

    def seen(self, batch: Batch, row: int) -> NDArray[np.int64]:
        """The content of all rows up to the last that a row attends to."""
        end = batch.positions[row] if batch.attend_ends is None else batch.attend_ends[row]
        owner = int(np.searchsorted(batch.query_starts, row, side="right")) - 1
        last = batch.positions[batch.query_starts[owner + 1] - 1]
        assert end <= last, "a row attends to rows that are not computed yet"
        return super().seen(batch, row)

    def forward(self, batch: Batch) -> FloatArray:
        """Looks at every row, so that each one's reach is checked."""
        logits = super().forward(batch)
        for row in range(len(batch.token_ids)):
            self.seen(batch, row)
        return logits
