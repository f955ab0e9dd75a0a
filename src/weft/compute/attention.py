"""Paged attention over all sequences of a step at once; a row's result never depends on the others.

Keys are read in tiles of `KEYS` that begin at multiples of `KEYS` in the sequence, whatever the block
size; queries in tiles of `QUERIES` rows of one sequence. A pair is one query tile and one key tile.
Every product and every sum has a fixed length: a softmax first takes the exact maximum over all keys,
then adds up the tiles in order. Hidden keys weigh exactly 0, so leaving a tile out changes no bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compute.runner import Batch, FloatArray
from weft.model.spec import DecoderSpec

KEYS = 64
QUERIES = 4
_MAX_PAIRS = 128  # in one piece of work, so that gathered keys and values stay in cache

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some query tiles and all their pairs; pairs of one tile are adjacent, in order of position."""

    rows: (
        Index  # [tiles, QUERIES], row of the step; the last row repeats in a tile that is not full
    )
    is_real: NDArray[np.bool_]  # [tiles, QUERIES], False for repeats
    first_pairs: Index  # [tiles]
    num_pairs: Index  # [tiles]
    tile_of_pair: Index  # [pairs]
    slots: Index  # [pairs, KEYS]
    is_hidden: NDArray[np.bool_]  # [pairs, 1, 1, QUERIES, KEYS]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which rows see which slots in one step, for layers of one window."""

    pieces: tuple[_Piece, ...]


def plan_attention(batch: Batch, block_size: int, window: int | None) -> AttentionPlan:
    """Cut the rows of a step into pieces of work."""
    starts = batch.query_starts.astype(np.intp)
    tiles_per_sequence = -(-np.diff(starts) // QUERIES)
    sequences = np.repeat(np.arange(len(tiles_per_sequence)), tiles_per_sequence)
    place = (
        np.arange(len(sequences)) - (np.cumsum(tiles_per_sequence) - tiles_per_sequence)[sequences]
    )
    rows = (starts[sequences] + place * QUERIES)[:, None] + np.arange(QUERIES)  # [tiles, QUERIES]
    last_rows = starts[sequences + 1][:, None] - 1
    positions = batch.positions.astype(np.intp)[np.minimum(rows, last_rows)]
    first_keys = np.zeros(len(rows), np.intp)
    if window is not None:
        first_keys = np.maximum(positions.min(axis=1) - window + 1, 0)
    tiles = _Tiles(sequences, rows, last_rows, positions, first_keys, positions.max(axis=1))
    return AttentionPlan(tuple(_pieces(tiles, batch, block_size, window)))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Every query tile of the step; keys from `first_keys` to `last_keys` are visible to its rows."""

    sequences: Index  # [tiles]
    rows: Index  # [tiles, QUERIES], past the sequence's end in a tile that is not full
    last_rows: Index  # [tiles, 1]
    positions: Index  # [tiles, QUERIES]
    first_keys: Index  # [tiles]
    last_keys: Index  # [tiles]

    def num_pairs(self) -> Index:
        """Key tiles that each query tile reads."""
        return self.last_keys // KEYS - self.first_keys // KEYS + 1


def _pieces(tiles: _Tiles, batch: Batch, block_size: int, window: int | None) -> Iterator[_Piece]:
    counts = tiles.num_pairs()
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _MAX_PAIRS, side="right")))
        yield _piece(tiles, batch, slice(begin, end), block_size, window)
        begin = end


def _piece(tiles: _Tiles, batch: Batch, part: slice, block_size: int, window: int | None) -> _Piece:
    counts = tiles.num_pairs()[part]
    first_pairs = np.cumsum(counts) - counts
    tile_of_pair = np.repeat(np.arange(len(counts)), counts)
    first, last = tiles.first_keys[part], tiles.last_keys[part]
    key_tile = (
        first[tile_of_pair] // KEYS + np.arange(len(tile_of_pair)) - first_pairs[tile_of_pair]
    )
    keys = (key_tile * KEYS)[:, None] + np.arange(KEYS)  # [pairs, KEYS], positions
    positions = tiles.positions[part][tile_of_pair][:, :, None]
    is_hidden = keys[:, None, :] > positions
    if window is not None:
        is_hidden |= keys[:, None, :] <= positions - window
    # Read only slots of this sequence that hold something: a stale NaN times 0 would be NaN.
    readable = np.clip(keys, first[tile_of_pair][:, None], last[tile_of_pair][:, None])
    sequence = tiles.sequences[part][tile_of_pair][:, None]
    blocks = batch.block_tables[sequence, readable // block_size].astype(np.intp)
    rows, last_rows = tiles.rows[part], tiles.last_rows[part]
    return _Piece(
        rows=np.minimum(rows, last_rows),
        is_real=rows <= last_rows,
        first_pairs=first_pairs,
        num_pairs=counts,
        tile_of_pair=tile_of_pair,
        slots=blocks * block_size + readable % block_size,
        is_hidden=is_hidden[:, None, None],
    )


def attend(
    spec: DecoderSpec,
    plan: AttentionPlan,
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
) -> FloatArray:
    """Attention of queries [rows, heads, head_dim] over pools [slots, kv heads, head_dim]."""
    result = np.zeros((len(queries), spec.num_heads * spec.head_dim), np.float32)
    for piece in plan.pieces:
        outputs = _attend_piece(spec, piece, queries, keys, values)
        result[piece.rows[piece.is_real]] = outputs[piece.is_real]
    return result


def _attend_piece(
    spec: DecoderSpec, piece: _Piece, queries: FloatArray, keys: FloatArray, values: FloatArray
) -> FloatArray:
    """Outputs of a piece, [tiles, QUERIES, heads * head_dim]. Rows of a product: (head of group, query)."""
    num_tiles, num_pairs = len(piece.rows), len(piece.slots)
    groups = spec.num_heads // spec.num_kv_heads
    q = queries[piece.rows].reshape(num_tiles, QUERIES, spec.num_kv_heads, groups, spec.head_dim)
    q = q.transpose(0, 2, 3, 1, 4).reshape(num_tiles, spec.num_kv_heads, groups * QUERIES, -1)
    k = keys.take(piece.slots, axis=0).transpose(0, 2, 3, 1)  # [pairs, kv heads, head_dim, KEYS]
    v = values.take(piece.slots, axis=0).transpose(0, 2, 1, 3)  # [pairs, kv heads, KEYS, head_dim]
    scores = np.matmul(q[piece.tile_of_pair], k)  # [pairs, kv heads, groups * QUERIES, KEYS]
    scores *= np.float32(spec.attention_scale)
    if spec.attention_soft_cap is not None:
        cap = np.float32(spec.attention_soft_cap)
        scores = np.tanh(scores / cap) * cap
    split = scores.reshape(num_pairs, spec.num_kv_heads, groups, QUERIES, KEYS)
    np.copyto(split, np.float32(-np.inf), where=piece.is_hidden)
    highest = np.maximum.reduceat(scores.max(axis=-1), piece.first_pairs, axis=0)
    scores -= highest[piece.tile_of_pair][..., None]
    weights = np.exp(scores, out=scores)
    totals = _sum_in_order(weights.sum(axis=-1), piece)[..., None]
    outputs = _sum_in_order(np.matmul(weights, v), piece) / totals
    outputs = outputs.reshape(num_tiles, spec.num_kv_heads, groups, QUERIES, spec.head_dim)
    return outputs.transpose(0, 3, 1, 2, 4).reshape(num_tiles, QUERIES, -1)


def _sum_in_order(parts: NDArray[Any], piece: _Piece) -> FloatArray:
    """[pairs, ...] to [tiles, ...]: from 0, the pairs of each tile are added one after the other."""
    totals = np.zeros((len(piece.num_pairs), *parts.shape[1:]), np.float32)
    for step in range(int(piece.num_pairs.max())):
        open_tiles = np.flatnonzero(piece.num_pairs > step)
        totals[open_tiles] += parts[piece.first_pairs[open_tiles] + step]
    return totals
