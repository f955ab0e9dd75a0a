"""A row's logits are the same bits whatever else is in the step, and however the step is cut."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.steps import (
    alone,
    check_overflow,
    check_slots_of_others,
    check_two_schedules,
    check_wanted_rows,
    run_at_random,
)
from weft.compute.arithmetic import tiles
from weft.compute.reference.runner import ReferenceRunner
from weft.model.open import open_model

# Odd sizes on purpose: tails of vector registers and of BLAS kernels are where rows could differ.
SHAPES = {
    "plain": ("hidden=64&heads=4&kv_heads=2&vocab=300", None),
    "odd sizes": (
        "qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301",
        33,
    ),
    "experts": (
        "hidden=72&heads=4&kv_heads=2&intermediate=41&vocab=301&experts=7&experts_per_token=3&shared=50",
        None,
    ),
    "experts and sinks": (
        (
            "layers=2&hidden=68&heads=6&kv_heads=2&head_dim=18&intermediate=41&vocab=301&experts=7"
            "&experts_per_token=3&sinks=true"
        ),
        33,
    ),
    "convolutions": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&conv=4",
        33,
    ),
    "gated delta nets": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&delta=6",
        33,
    ),
    "mamba": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&mamba=8",
        33,
    ),
    "latent attention": (
        "hidden=68&heads=4&head_dim=16&intermediate=41&vocab=301&latent=32&experts=5",
        None,
    ),
    "latent attention, latent queries": (
        "layers=2&hidden=68&heads=6&head_dim=32&intermediate=41&vocab=301&latent=48&latent_queries=20",
        33,
    ),
    "wide": ("layers=1&hidden=192&heads=6&kv_heads=6&head_dim=32&intermediate=512&vocab=603", 70),
}


def make_runner(shape):
    """A random model; every other layer has the window, and softcaps are on where there is one."""
    query, window = SHAPES[shape]
    checkpoint = open_model(f"embedded:random?{query}")
    layers = tuple(
        replace(layer, window=window if place % 2 == 0 else None)
        for place, layer in enumerate(checkpoint.spec.layers)
    )
    cap = None if window is None else 20.0
    spec = replace(checkpoint.spec, layers=layers, attention_soft_cap=cap, final_soft_cap=cap)
    return ReferenceRunner(spec, checkpoint.load(), max_model_len=4096)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_schedule_gives_the_same_bits(shape):
    """Random mixes, chunks, block sizes and placements equal one token at a time, bit for bit."""
    runner = make_runner(shape)
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (135, 7, 66, 1)]
    expected = [alone(runner, ids).tobytes() for ids in sequences]
    for max_chunk in (5, 40, 200):
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


RUNNER = make_runner("odd sizes")


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    max_chunk=st.integers(1, 90),
)
def test_two_random_schedules_agree(seed, lengths, max_chunk):
    """Two independent random schedules of the same sequences give the same bits."""
    check_two_schedules(RUNNER, seed, lengths, max_chunk)


def test_what_other_slots_hold_does_not_matter():
    """Stale NaN in slots of nobody, and of later positions, reaches no row."""
    runner = make_runner("plain")
    check_slots_of_others(runner, 8, lambda: runner._pool.fill(np.nan), cuts=())


def test_a_nan_stays_in_its_sequence():
    """A sequence that overflows gives NaN; the others of the step keep their bits."""
    runner = make_runner("plain")
    runner._embed[0] = np.nan
    check_overflow(runner)


def test_only_the_wanted_rows_are_returned():
    """`logit_rows` picks rows; none at all is a valid step of unfinished prompts."""
    runner = make_runner("plain")
    check_wanted_rows(runner)


@pytest.mark.parametrize(("width", "out"), [(64, 64), (68, 301), (192, 1024), (700, 257)])
def test_place_in_a_tile_does_not_matter(width, out):
    """One row gives the same bits at every place of a tile, beside anything."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((out, width)).astype(np.float32)
    row = rng.standard_normal(width).astype(np.float32)
    results = set()
    for place in range(3 * tiles.LANES):
        rows = rng.standard_normal((3 * tiles.LANES, width)).astype(np.float32)
        rows[place] = row
        results.add(tiles.matmul(rows, matrix)[place].tobytes())
    assert len(results) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["", "Haswell", "Nehalem"])
def test_bits_agree_under_other_kernels_and_threads(kernels):
    """Schedules agree with the kernels of other processors, over two threads; over one they ran in this process."""
    settings = {"OPENBLAS_CORETYPE": kernels, "OPENBLAS_NUM_THREADS": "2"}
    test = f"{__file__}::test_any_schedule_gives_the_same_bits"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
