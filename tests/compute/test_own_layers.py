"""Models whose layers have sizes, keys and inputs of their own, on both CPU backends: bits, and copies of blocks."""

import numpy as np
import pytest

from tests.compute.families import CASES, make_model, save
from tests.compute.runners import load_on
from tests.compute.steps import Part, alone, run_at_random, step
from tests.slow import slow_but
from weft.compute.native import usable_paths
from weft.model.open import open_model

# With heads of two sizes and inputs of layers; with keys as values; with experts beside the MLP.
MODELS = [case for case in CASES if case.startswith("gemma4")]
BEST = usable_paths()[0]
RUNS = [(path, cache) for path in (*usable_paths(), "reference") for cache in ("auto", "int8")]


@pytest.fixture(scope="module", params=slow_but(MODELS[:1], MODELS))
def checkpoint(request, tmp_path_factory):
    """A saved model."""
    name = save(make_model(*CASES[request.param]), tmp_path_factory.mktemp("model"))
    return open_model(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "run", slow_but([(BEST, "auto"), (BEST, "int8"), ("reference", "auto")], RUNS)
)
def test_any_schedule_gives_the_same_bits(checkpoint, run):
    """Random mixes, chunks, block sizes and placements equal one token at a time, bit for bit."""
    path, cache = run
    runner = load_on(path, checkpoint, kv_cache_dtype=cache)
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (50, 7, 1)]
    expected = [alone(runner, ids).tobytes() for ids in sequences]
    got = run_at_random(runner, sequences, rng, 40)
    assert [logits.tobytes() for logits in got] == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [BEST, "reference"])
def test_a_sequence_goes_on_from_copied_blocks(checkpoint, path):
    """Blocks that are copied to other places of another pool give the same bits; layers share what they hold."""
    ids = np.random.default_rng(6).integers(0, 300, 40).tolist()
    first, second = (load_on(path, checkpoint) for _ in range(2))
    expected = alone(first, ids)[-1]
    second.allocate_kv(num_blocks=5, block_size=16)
    blocks = [4, 1, 2]
    for source, block in enumerate(blocks):
        second.write_block(block, first.read_block(source))
    assert b"".join(first.block_rows(0)) == first.read_block(0).tobytes()
    logits = second.forward(step([Part(ids, 40, blocks, 39, 40)], 16))
    assert logits[0].tobytes() == expected.tobytes()
    assert first.read_block(0).nbytes < 16 * 4 * 2 * 2 * 48 * len(checkpoint.spec.layers)
