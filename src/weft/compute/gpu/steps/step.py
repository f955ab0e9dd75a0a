"""`StepArrays`: the arrays of a step for the kernels.

`pack` writes the arrays into one buffer, which is copied to the card in one transfer.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from weft.compute.protocols.runner import Batch, IntArray

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class StepShape:
    """Padded sizes of a step, for which a graph is captured. Padding rows write to a block that no sequence uses."""

    num_rows: int
    num_wanted: int
    num_lone: int
    num_tiles: int
    num_attention_parts: int

    @property
    def sizes(self) -> dict[str, int]:
        """Number of values of each array, in the order of the buffer; block tables follow."""
        return {
            "table_stride": 1,
            "token_ids": self.num_rows,
            "token_sources": self.num_rows,
            "positions": self.num_rows,
            "slots": self.num_rows,
            "wanted": self.num_wanted,
            "lone_rows": self.num_lone,
            "lone_sequences": self.num_lone,
            "tile_sequences": self.num_tiles,
            "tile_rows": self.num_tiles,
            "tile_ends": self.num_tiles,
        }

    @property
    def table_start(self) -> int:
        """Offset of the block tables in the buffer."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Views of a buffer on the card, int32. Padding entries of lone rows are -1, and padding tiles are empty."""

    shape: StepShape
    token_ids: torch.Tensor  # [rows]
    token_sources: (
        torch.Tensor
    )  # [rows], index in the tokens that the previous step sampled; -1: the token is in `token_ids`
    positions: torch.Tensor  # [rows]
    slots: torch.Tensor  # [rows]
    wanted: torch.Tensor  # [wanted], rows whose logits are wanted
    lone_rows: torch.Tensor  # [lone], rows of sequences with one row
    lone_sequences: torch.Tensor  # [lone]
    tile_sequences: torch.Tensor  # [tiles]
    tile_rows: torch.Tensor  # [tiles], first row
    tile_ends: torch.Tensor  # [tiles], end of the sequence's rows
    table_stride: torch.Tensor  # [1], number of blocks in a row of `tables`
    tables: torch.Tensor  # [sequences * stride]

    @classmethod
    def of(cls, shape: StepShape, buffer: torch.Tensor) -> Self:
        """Returns the arrays as views of the buffer that `pack` fills."""
        views, start = {}, 0
        for name, size in shape.sizes.items():
            views[name] = buffer[start : start + size]
            start += size
        return cls(shape=shape, tables=buffer[start:], **views)

    @property
    def num_rows(self) -> int:
        return self.shape.num_rows

    @property
    def num_lone(self) -> int:
        return self.shape.num_lone

    @property
    def num_tiles(self) -> int:
        return self.shape.num_tiles

    @property
    def num_attention_parts(self) -> int:
        return self.shape.num_attention_parts

    @property
    def tiles(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.tile_sequences, self.tile_rows, self.tile_ends


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a batch by kind of attention: sequences with one row, and tiles of several rows."""

    lone_rows: IntArray
    lone_sequences: IntArray
    tile_sequences: IntArray
    tile_rows: IntArray
    tile_ends: IntArray

    @classmethod
    def of(cls, batch: Batch, rows_of_tile: int) -> Self:
        """Returns the layout of a batch."""
        starts, ends = batch.query_starts[:-1], batch.query_starts[1:]
        is_lone = ends - starts == 1
        lone = np.flatnonzero(is_lone).astype(np.int32)
        several = np.flatnonzero(~is_lone).astype(np.int32)
        counts = -(-(ends - starts)[several] // rows_of_tile)
        sequences = np.repeat(several, counts)
        places = np.arange(len(sequences)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = starts[sequences] + places * rows_of_tile
        return cls(starts[lone], lone, sequences, rows.astype(np.int32), ends[sequences])


def pack(
    buffer: NDArray[np.int32], shape: StepShape, batch: Batch, layout: Layout, spare_slot: int
) -> int:
    """Writes a batch, padded to `shape`, into the buffer; returns the number of used entries."""
    arrays: dict[str, tuple[IntArray, int]] = {  # each with the value that pads it
        "table_stride": (np.array([batch.block_tables.shape[1]], np.int32), 0),
        "token_ids": (batch.token_ids, 0),
        "token_sources": (_NOTHING if batch.token_sources is None else batch.token_sources, -1),
        "positions": (batch.positions, 0),
        "slots": (batch.slots, spare_slot),
        "wanted": (batch.logit_rows, 0),
        "lone_rows": (layout.lone_rows, -1),
        "lone_sequences": (layout.lone_sequences, 0),
        "tile_sequences": (layout.tile_sequences, 0),
        "tile_rows": (layout.tile_rows, 0),
        "tile_ends": (layout.tile_ends, 0),
    }
    start = 0
    for name, size in shape.sizes.items():
        values, padding = arrays[name]
        buffer[start : start + len(values)] = values
        buffer[start + len(values) : start + size] = padding
        start += size
    end = start + batch.block_tables.size
    buffer[start:end] = batch.block_tables.reshape(-1)
    return end
