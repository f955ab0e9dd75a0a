"""A step's arrays: how rows are sorted, padded, and laid out in one buffer."""

import numpy as np

from tests.compute.steps import Part, step
from weft.compute.gpu.steps.step import Layout, StepArrays, StepShape, pack
from weft.compute.gpu.steps.step_shapes import exact_shape, padded_shape

PART = 256


def some_batch():
    """A prompt of 40 rows, a sequence with one, and a prompt of 3."""
    parts = [
        Part(list(range(40)), 40, [0, 1, 2, 3, 4], 0, 40),
        Part(list(range(300)), 300, list(range(5, 43)), 299, 300),
        Part([7, 8, 9], 3, [50], 0, 3),
    ]
    return step(parts, 8, [39, 40, 43])


def test_rows_are_sorted_by_how_they_attend():
    """Sequences with one row by themselves; the rows of others in tiles that end with their sequence."""
    layout = Layout.of(some_batch(), 32)
    assert layout.lone_rows.tolist() == [40]
    assert layout.lone_sequences.tolist() == [1]
    assert layout.tile_sequences.tolist() == [0, 0, 2]
    assert layout.tile_rows.tolist() == [0, 32, 41]
    assert layout.tile_ends.tolist() == [40, 40, 44]


def test_a_padded_step_has_room_for_the_exact_one():
    """And the keys of its longest single row fit its parts."""
    batch = some_batch()
    layout = Layout.of(batch, 32)
    exact, padded = exact_shape(batch, layout, PART), padded_shape(batch, layout, PART)
    assert exact == StepShape(44, 3, 1, 3, 2)
    assert all(padded.sizes[name] >= size for name, size in exact.sizes.items())
    assert padded.num_attention_parts >= exact.num_attention_parts


def test_what_is_packed_is_what_the_card_sees():
    """Padding writes to the spare slot, samples row 0, and attends to nothing."""
    import torch

    batch = some_batch()
    layout = Layout.of(batch, 32)
    shape = padded_shape(batch, layout, PART)
    buffer = torch.full((20_000,), 77, dtype=torch.int32)
    end = pack(buffer.numpy(), shape, batch, layout, spare_slot=999)
    arrays = StepArrays.of(shape, buffer)
    assert arrays.token_ids[:44].tolist() == batch.token_ids.tolist()
    assert set(arrays.slots[44:].tolist()) == {999}
    assert arrays.lone_rows.tolist()[:2] == [40, -1]
    assert arrays.tile_ends[3:].eq(0).all()
    assert set(arrays.token_sources.tolist()) == {-1}
    tables = arrays.tables[: batch.block_tables.size].numpy().reshape(batch.block_tables.shape)
    assert np.array_equal(tables, batch.block_tables)
    assert buffer[end] == 77
