"""Paged attention over all sequences of a step at once; a row's result never depends on other rows.

Keys are read in tiles of `KEYS` keys that begin at multiples of `KEYS` in the sequence, whatever the block size. A
query tile has some rows of one sequence, with all heads that share keys along its lanes. A pair is one query tile with
one key tile. Every product and every sum has a fixed length: a softmax first takes the exact maximum over all keys,
then sums the pairs of a tile in order. Hidden keys have the weight 0 exactly, so leaving out a pair changes no bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic.tiles import LANES, padded_length
from weft.compute.protocols.runner import Batch, FloatArray
from weft.model.spec import ModelSpec

KEYS = 64  # a power of two
_MAX_PAIRS = 128  # pairs per piece of work, so that the gathered keys and values stay in the cache

Index = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of work: some query tiles with all their pairs. Pairs of one tile are adjacent, in order of position."""

    rows: Index  # [tiles, rows of a tile], row of the step; the last row repeats in a partial tile
    is_real: Flags  # [tiles, rows of a tile], False for repeats
    first_pairs: Index  # [tiles]
    rounds: tuple[tuple[Index, Index], ...]  # n-th: tiles with more than n pairs; their n-th pairs
    tile_of_pair: Index  # [pairs]
    slots: Index  # [pairs, KEYS]
    is_hidden: Flags  # [pairs, 1, KEYS, lanes]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The slots that each row of a step attends to, for layers with the same window and chunk."""

    pieces: tuple[_Piece, ...]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """All query tiles of a step; a tile's rows attend to keys from `first_keys` to `last_keys`.

    A row attends to keys up to its end: its own position, or a later one in a span with attention in both directions.
    """

    sequences: Index  # [tiles]
    rows: Index  # [tiles, rows of a tile]
    is_real: Flags  # [tiles, rows of a tile]
    lane_firsts: Index  # [tiles, lanes], the first key that the row in each lane attends to
    lane_ends: Index  # [tiles, lanes], and its end
    first_keys: Index  # [tiles]
    last_keys: Index  # [tiles]


def plan_attention(
    spec: ModelSpec, batch: Batch, block_size: int, window: int | None, chunk: int | None
) -> AttentionPlan:
    """Returns the attention plan of a step: its rows in pieces of work. `LayerSpec` explains `window` and `chunk`."""
    groups = spec.num_heads // spec.num_kv_heads
    tile_rows = max(1, LANES // groups)
    starts = batch.query_starts.astype(np.intp)
    tiles_per_sequence = -(-np.diff(starts) // tile_rows)
    sequences = np.repeat(np.arange(len(tiles_per_sequence)), tiles_per_sequence)
    first_tiles = np.cumsum(tiles_per_sequence) - tiles_per_sequence
    place = np.arange(len(sequences)) - first_tiles[sequences]
    rows = (starts[sequences] + place * tile_rows)[:, None] + np.arange(tile_rows)
    last_rows = starts[sequences + 1][:, None] - 1
    is_real = rows <= last_rows
    rows = np.minimum(rows, last_rows)
    positions = batch.positions.astype(np.intp)[rows]
    ends = positions
    if batch.attend_ends is not None:
        ends = batch.attend_ends.astype(np.intp)[rows]
    lanes = np.minimum(np.arange(padded_length(tile_rows * groups)) // groups, tile_rows - 1)
    firsts = _first_keys(positions, window, chunk)
    first_keys, last_keys = firsts.min(axis=1), ends.max(axis=1)
    tiles = _Tiles(
        sequences, rows, is_real, firsts[:, lanes], ends[:, lanes], first_keys, last_keys
    )
    return AttentionPlan(tuple(_pieces(tiles, batch, block_size)))


def _first_keys(positions: Index, window: int | None, chunk: int | None) -> Index:
    """Returns the position of the first key that a row at each of `positions` attends to."""
    firsts = np.zeros_like(positions)
    if window is not None:
        firsts = np.maximum(positions - window + 1, 0)
    return firsts if chunk is None else np.maximum(firsts, positions // chunk * chunk)


def _pieces(tiles: _Tiles, batch: Batch, block_size: int) -> Iterator[_Piece]:
    counts = tiles.last_keys // KEYS - tiles.first_keys // KEYS + 1
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _MAX_PAIRS, side="right")))
        part = slice(begin, end)
        num_pairs = counts[part]
        first_pairs = np.cumsum(num_pairs) - num_pairs
        tile_of_pair = np.repeat(np.arange(len(num_pairs)), num_pairs)
        place = np.arange(len(tile_of_pair)) - first_pairs[tile_of_pair]
        key_tiles = tiles.first_keys[part][tile_of_pair] // KEYS + place
        keys = (key_tiles * KEYS)[:, None] + np.arange(KEYS)  # [pairs, KEYS], positions
        yield _Piece(
            rows=tiles.rows[part],
            is_real=tiles.is_real[part],
            first_pairs=first_pairs,
            rounds=tuple(_rounds(first_pairs, num_pairs)),
            tile_of_pair=tile_of_pair,
            slots=_slots(tiles, batch, block_size, tile_of_pair + begin, keys),
            is_hidden=_hidden(
                keys,
                tiles.lane_firsts[part][tile_of_pair],
                tiles.lane_ends[part][tile_of_pair],
            ),
        )
        begin = end


def _rounds(first_pairs: Index, num_pairs: Index) -> Iterator[tuple[Index, Index]]:
    for place in range(int(num_pairs.max())):
        open_tiles = np.flatnonzero(num_pairs > place)
        yield open_tiles, first_pairs[open_tiles] + place


def _slots(tiles: _Tiles, batch: Batch, block_size: int, tile_of_pair: Index, keys: Index) -> Index:
    # Read only slots that this sequence has written: a stale NaN times 0 would be NaN.
    first = tiles.first_keys[tile_of_pair][:, None]
    last = tiles.last_keys[tile_of_pair][:, None]
    readable = np.clip(keys, first, last)
    sequences = tiles.sequences[tile_of_pair][:, None]
    blocks = batch.block_tables[sequences, readable // block_size].astype(np.intp)
    slots: Index = blocks * block_size + readable % block_size
    return slots


def _hidden(keys: Index, lane_firsts: Index, lane_ends: Index) -> Flags:
    hidden: Flags = keys[:, :, None] > lane_ends[:, None, :]
    hidden |= keys[:, :, None] < lane_firsts[:, None, :]
    return hidden[:, None]


def attend(
    spec: ModelSpec,
    plan: AttentionPlan,
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    sinks: FloatArray | None = None,
) -> FloatArray:
    """Returns attention of queries [rows, heads, head_dim] over pools [slots, kv heads, head_dim].

    `sinks` [heads] are further scores besides the keys' scores, without values.
    """
    result = np.zeros((len(queries), spec.num_heads * spec.head_dim), np.float32)
    for piece in plan.pieces:
        outputs = _attend_piece(spec, piece, queries, keys, values, sinks)
        result[piece.rows[piece.is_real]] = outputs[piece.is_real]
    return result


def _attend_piece(
    spec: ModelSpec,
    piece: _Piece,
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    sinks: FloatArray | None,
) -> FloatArray:
    """Returns the outputs of a piece, [tiles, rows of a tile, heads * head_dim]."""
    q = _to_lanes(spec, queries[piece.rows], piece.is_hidden.shape[-1])
    k = keys.take(piece.slots, axis=0).transpose(0, 2, 1, 3)  # [pairs, kv heads, KEYS, head_dim]
    v = values.take(piece.slots, axis=0).transpose(0, 2, 3, 1)  # [pairs, kv heads, head_dim, KEYS]
    scores = np.matmul(k, q[piece.tile_of_pair])  # [pairs, kv heads, KEYS, lanes]
    scores *= np.float32(spec.attention_scale)
    if spec.attention_soft_cap is not None:
        cap = np.float32(spec.attention_soft_cap)
        scores = np.tanh(scores / cap) * cap
    np.copyto(scores, np.float32(-np.inf), where=piece.is_hidden)
    highest = np.maximum.reduceat(_fold(np.maximum, scores), piece.first_pairs, axis=0)
    sinks_by_lane = None
    if sinks is not None:  # [kv heads, lanes]; a row's heads are adjacent, row after row
        of_groups = sinks.reshape(spec.num_kv_heads, -1)
        sinks_by_lane = of_groups[:, np.arange(highest.shape[-1]) % of_groups.shape[1]]
        highest = np.maximum(highest, sinks_by_lane)
    scores -= highest[piece.tile_of_pair][:, :, None]
    weights = np.exp(scores, out=scores)
    totals = _sum_in_order(_fold(np.add, weights), piece)  # [tiles, kv heads, lanes]
    if sinks_by_lane is not None:
        totals += np.exp(sinks_by_lane - highest)
    outputs = _sum_in_order(np.matmul(v, weights), piece) / totals[:, :, None]
    return _from_lanes(spec, outputs, piece.rows.shape[1])


def _fold(combine: np.ufunc, parts: FloatArray) -> FloatArray:
    """Reduces [pairs, kv heads, KEYS, lanes] to [pairs, kv heads, lanes], by halves."""
    while parts.shape[2] > 1:  # numpy's own reduction over an inner axis takes three times as long
        half = parts.shape[2] // 2
        parts = combine(parts[:, :, :half], parts[:, :, half:])
    return parts[:, :, 0]


def _to_lanes(spec: ModelSpec, queries: FloatArray, num_lanes: int) -> FloatArray:
    """Returns [tiles, rows, heads, head_dim] as [tiles, kv heads, head_dim, lanes]; a row's heads are adjacent."""
    tiles, rows = queries.shape[:2]
    split = queries.reshape(tiles, rows, spec.num_kv_heads, -1, spec.head_dim)
    lanes = split.transpose(0, 2, 4, 1, 3).reshape(tiles, spec.num_kv_heads, spec.head_dim, -1)
    padded = np.zeros((*lanes.shape[:3], num_lanes), np.float32)
    padded[..., : lanes.shape[3]] = lanes
    return padded


def _from_lanes(spec: ModelSpec, outputs: FloatArray, rows: int) -> FloatArray:
    """Reverses `_to_lanes`: returns [tiles, rows, heads * head_dim]."""
    groups = spec.num_heads // spec.num_kv_heads
    lanes = outputs[..., : rows * groups]
    split = lanes.reshape(len(lanes), spec.num_kv_heads, spec.head_dim, rows, groups)
    return split.transpose(0, 3, 1, 4, 2).reshape(len(lanes), rows, -1)


def _sum_in_order(parts: FloatArray, piece: _Piece) -> FloatArray:
    """Returns [tiles, ...], the sums of [pairs, ...]: starts from 0 and adds each tile's pairs one after the other."""
    totals = np.zeros((len(piece.rows), *parts.shape[1:]), np.float32)
    for open_tiles, pairs in piece.rounds:
        totals[open_tiles] += parts[pairs]
    return totals
