"""A row's logits are the same bits whatever else is in the step, on every path and thread count."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import LEARNED_POSITIONS, LONG_WINDOW, SHAPES, make_runner
from tests.compute.steps import (
    Part,
    alone,
    check_overflow,
    check_slots_of_others,
    check_two_schedules,
    check_wanted_rows,
    run_at_random,
    step,
)
from weft.compute.native import usable_paths

PATHS = usable_paths()
# The path that this CPU takes by itself is tested by default. The one without instructions of its own takes as long as
# all others together.
PATHS_BY_TIME = [PATHS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in PATHS[1:])]
DTYPES = ("bfloat16", "float32", "int8", "int4", "bfloat16+int8", "float32+int8")


@pytest.mark.parametrize("path", PATHS_BY_TIME)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, *LEARNED_POSITIONS])
def test_any_schedule_gives_the_same_bits(shape, dtype, path):
    """Random mixes, chunks, block sizes, placements and threads equal one token at a time."""
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (150, 7, 66, 1, 129)]
    single = make_runner(shape, dtype, path, num_threads=1)
    expected = [alone(single, ids).tobytes() for ids in sequences]
    for num_threads, max_chunk in ((1, 5), (1, 40), (2, 40), (2, 200), (3, 17)):
        runner = make_runner(shape, dtype, path, num_threads)
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


@pytest.mark.parametrize("path", PATHS_BY_TIME)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_prompt_in_one_step_gives_the_same_bits(shape, dtype, path):
    """Enough rows that each thread takes rows of its own, and that they pass in several blocks."""
    ids = np.random.default_rng(6).integers(0, 300, 450).tolist()
    expected = alone(make_runner(shape, dtype, path), ids).tobytes()
    blocks = list(range(1, 30))
    for num_threads in (1, 2, 3):
        runner = make_runner(shape, dtype, path, num_threads)
        runner.allocate_kv(num_blocks=30, block_size=16, num_state_slots=1)
        got = runner.forward(step([Part(ids, 450, blocks, 0, 450)], 16))
        assert got.tobytes() == expected


@pytest.mark.parametrize("path", PATHS_BY_TIME)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "bfloat16+int8"])
@pytest.mark.parametrize("shape", ["plain", "experts and sinks", "latent attention", *LONG_WINDOW])
def test_keys_of_several_blocks_give_the_same_bits(shape, dtype, path):
    """A context of three blocks of keys: row by row, in chunks, and in one step, whose tasks keep scores of one."""
    if "latent" in shape and "+" in dtype:
        pytest.skip("latent attention takes no int8 cache")
    ids = np.random.default_rng(10).integers(0, 300, 1100).tolist()
    blocks = list(range(1, 70))

    def last_rows(num_threads, ends):
        runner = make_runner(shape, dtype, path, num_threads)
        runner.allocate_kv(num_blocks=70, block_size=16)
        rows = []
        for start, end in itertools.pairwise([0, *ends]):
            wanted = [row - start for row in range(max(start, 1090), end)]
            rows.append(runner.forward(step([Part(ids, 1100, blocks, start, end)], 16, wanted)))
        return b"".join(part.tobytes() for part in rows)

    expected = last_rows(1, range(1080, 1101))
    assert last_rows(2, [1100]) == expected
    assert last_rows(3, [*range(37, 1100, 37), 1100]) == expected


@pytest.mark.parametrize("path", PATHS_BY_TIME)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float32+int8"])
@pytest.mark.parametrize(
    ("shape", "num_threads"), [("many heads", 2), ("many heads", 5), ("experts and sinks", 4)]
)
def test_threads_that_share_the_attention_of_a_long_context_give_the_same_bits(
    shape, num_threads, dtype, path
):
    """One row has fewer KV heads than there are threads: they divide its tiles, rows and columns of outputs."""
    ids = np.random.default_rng(9).integers(0, 300, 1703).tolist()
    blocks = list(range(1, 108))
    steps = [(0, 900), (900, 1700), (1700, 1701), (1701, 1703)]

    def last_rows(num_threads):
        runner = make_runner(shape, dtype, path, num_threads)
        runner.allocate_kv(num_blocks=108, block_size=16)
        parts = [Part(ids, len(ids), blocks, *rows) for rows in steps]
        return [runner.forward(step([part], 16, [part.end - part.start - 1])) for part in parts]

    assert [row.tobytes() for row in last_rows(num_threads)] == [
        row.tobytes() for row in last_rows(1)
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sums_too_small_to_be_normal_are_the_same_bits(dtype, path):
    """Instructions differ in what they make of these; those for one row and for many must agree."""
    ids = np.random.default_rng(7).integers(0, 300, 40).tolist()
    runner = make_runner("plain", dtype, path, num_threads=2, norm=1e-37)
    expected = alone(runner, ids)
    smallest_normal = np.finfo(np.float32).smallest_normal
    assert (np.abs(expected) < smallest_normal).mean() > 0.02
    assert (np.abs(expected) > smallest_normal).mean() > 0.02
    [got] = run_at_random(runner, [ids], np.random.default_rng(8), max_chunk=40)
    assert got.tobytes() == expected.tobytes()


RUNNERS = {dtype: make_runner("odd sizes", dtype, num_threads=2) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    max_chunk=st.integers(1, 90),
)
def test_two_random_schedules_agree(dtype, seed, lengths, max_chunk):
    """Two independent random schedules of the same sequences give the same bits."""
    check_two_schedules(RUNNERS[dtype], seed, lengths, max_chunk)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize(
    "shape", ["plain", "odd sizes", "convolutions", "mamba", "gated delta nets"]
)
def test_what_other_slots_hold_does_not_matter(shape, block_size, dtype, path):
    """Stale NaN in slots of nobody, and of later positions, reaches no row."""
    runner = make_runner(shape, dtype, path, num_threads=2)
    check_slots_of_others(runner, block_size, lambda: runner.fill_kv(0xFF))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_in_its_sequence(dtype, path):
    """A sequence that overflows gives NaN; the others of the step keep their bits."""
    check_overflow(make_runner("plain", dtype, path, num_threads=2, nan_token=True))


def test_only_the_wanted_rows_are_returned():
    """`logit_rows` picks rows; none at all is a valid step of unfinished prompts."""
    check_wanted_rows(make_runner("plain", "bfloat16"))


def test_a_step_without_logits_still_fills_the_cache():
    """A chunk that asks for nothing leaves the K/V that the next chunk attends to."""
    runner = make_runner("plain", "bfloat16")
    ids = list(range(1, 41))
    expected = alone(runner, ids)
    runner.allocate_kv(num_blocks=3, block_size=16)
    runner.forward(step([Part(ids, 40, [2, 0, 1], 0, 39)], 16, []))
    got = runner.forward(step([Part(ids, 40, [2, 0, 1], 39, 40)], 16))
    assert got.tobytes() == expected[39:].tobytes()


@pytest.mark.parametrize("path", PATHS_BY_TIME)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sequences_that_share_blocks_keep_their_bits(shape, dtype, path):
    """Prefixes of two kinds, in mixed order, beside sequences of their own and a prompt under way."""
    rng = np.random.default_rng(9)
    single = make_runner(shape, dtype, path, num_threads=1)
    prefixes = [rng.integers(0, 300, length).tolist() for length in (112, 80, 0)]
    blocks = iter(range(1, 200))
    tables = [[next(blocks) for _ in range(len(prefix) // 16)] for prefix in prefixes]
    sequences = []
    for number in range(24):
        kind = (0, 1, 0, 2)[number % 4]
        own = rng.integers(0, 300, 3 + 5 * number % 47).tolist()
        table = tables[kind] + [next(blocks) for _ in range(len(own) // 16 + 1)]
        sequences.append((prefixes[kind] + own, table))
    runner = make_runner(shape, dtype, path, num_threads=2)
    runner.allocate_kv(num_blocks=200, block_size=16, num_state_slots=25)
    parts = []
    for slot, (ids, table) in enumerate(sequences):
        last, states = len(ids) - 1, (slot, slot)
        runner.forward(step([Part(ids, len(ids), table, 0, last, states)], 16, []))
        parts.append(Part(ids, len(ids), table, last, len(ids), states))
    parts.insert(7, Part(sequences[3][0], 12, [next(blocks)], 0, 12, (24, 24)))
    got = runner.forward(step(parts, 16, [*range(7), *range(19, 19 + 17)]))
    expected = [last_row(single, ids) for ids, _ in sequences]
    assert got.tobytes() == np.concatenate(expected).tobytes()


def last_row(runner, ids):
    """The logits of the last row of a sequence alone, in one step: other tests hold that to a row a step."""
    blocks = list(range(-(-len(ids) // 16)))
    runner.allocate_kv(num_blocks=len(blocks), block_size=16, num_state_slots=1)
    return runner.forward(step([Part(ids, len(ids), blocks, 0, len(ids))], 16, [len(ids) - 1]))
