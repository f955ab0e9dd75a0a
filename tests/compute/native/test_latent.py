"""Latent attention in the core: what numpy computes, to the same bits in every step, and one vector a token."""

import numpy as np
import pytest

from tests.compute.adapted import part, run
from tests.compute.native.models import LATENT_SHAPES, errors, make_runner, pair
from tests.compute.steps import Part, alone, check_slots_of_others, run_at_random, step
from tests.model.checkpoints import CONFIG, write_checkpoint
from weft.compute.native import resident_bytes, usable_paths
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.engine.start.fit import fit
from weft.model.lora import Adapter, LowRank
from weft.model.open import open_model

PATHS = usable_paths()
DTYPES = ("bfloat16", "float32", "int8", "int4")
QUERY = "latent attention, latent queries"
DEEPSEEK_V2 = {
    **CONFIG,
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 3.0,
}


def opened(shape=QUERY):
    """Random weights, without windows."""
    return open_model(f"embedded:random?{LATENT_SHAPES[shape][0]}")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("shape", LATENT_SHAPES)
def test_the_core_computes_what_numpy_does(shape, quantization, path):
    """In float32 around what is rounded; heads' own matrices are not, in either."""
    rounding = {} if quantization is None else {"quantization": quantization}
    bound = 2e-6 if quantization is None else 0.02
    assert max(errors(opened(shape), path, (60, 130), **rounding)) <= bound


@pytest.mark.parametrize("path", PATHS)
def test_groups_by_their_best_expert_agree_with_numpy(tmp_path, path):
    """As DeepSeek-V2 chooses experts by a softmax; and heads whose values fill no lanes."""
    checkpoint = open_model(str(write_checkpoint(tmp_path / "a", DEEPSEEK_V2)))
    assert max(errors(checkpoint, path, (60,))) <= 2e-6
    assert max(errors(checkpoint, path, (60,), quantization="int4")) <= 0.02


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", LATENT_SHAPES)
def test_any_schedule_gives_the_same_bits(shape, dtype, path):
    """Random mixes, chunks, block sizes, placements and threads equal one token at a time."""
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (110, 7, 66, 1)]
    expected = [alone(make_runner(shape, dtype, path), ids).tobytes() for ids in sequences]
    for num_threads, max_chunk in ((1, 40), (2, 5), (2, 200), (3, 17)):
        got = run_at_random(make_runner(shape, dtype, path, num_threads), sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_other_slots_hold_does_not_matter(dtype, block_size, path):
    """Stale NaN in slots of nobody, and of later positions, reaches no row: keys are values here."""
    runner = make_runner(QUERY, dtype, path, num_threads=2)
    check_slots_of_others(runner, block_size, lambda: runner.fill_kv(0xFF))


@pytest.mark.parametrize("path", PATHS)
def test_sequences_that_share_blocks_keep_their_bits(path):
    """A prefix of whole blocks is read once for all who have it."""
    rng = np.random.default_rng(9)
    prefix = rng.integers(0, 300, 64).tolist()
    sequences = [prefix + rng.integers(0, 300, 5 + i).tolist() for i in range(5)]
    runner = make_runner(QUERY, "bfloat16", path, num_threads=2)
    expected = [alone(runner, ids)[-1].tobytes() for ids in sequences]
    runner.allocate_kv(num_blocks=30, block_size=16)
    tables = [[0, 1, 2, 3, 5 + 2 * i, 6 + 2 * i] for i in range(5)]
    for ids, table in zip(sequences, tables, strict=True):
        runner.forward(step([Part(ids, len(ids), table, 0, len(ids) - 1)], 16, []))
    last = [
        Part(ids, len(ids), table, len(ids) - 1, len(ids))
        for ids, table in zip(sequences, tables, strict=True)
    ]
    assert [row.tobytes() for row in runner.forward(step(last, 16))] == expected


def test_a_block_goes_out_and_comes_back_to_the_same_bits():
    """As tiers and transfers move it; and it is as large as the memory plan says."""
    runner = make_runner(QUERY, "bfloat16", num_threads=2)
    ids = list(range(1, 33))
    expected = alone(runner, ids)
    runner.allocate_kv(num_blocks=4, block_size=16)
    runner.forward(step([Part(ids, 32, [0, 1], 0, 31)], 16, []))
    taken = [runner.read_block(block) for block in (0, 1)]
    runner.fill_kv(0xFF)
    for block, data in zip((2, 3), taken, strict=True):
        runner.write_block(block, data)
    got = runner.forward(step([Part(ids, 32, [2, 3], 31, 32)], 16))
    assert got.tobytes() == expected[31:].tobytes()
    spec = opened().spec
    per_token = resident_bytes(spec, "bfloat16").kv_per_token
    assert len(taken[0]) == 16 * per_token
    assert per_token == len(spec.layers) * 2 * (48 + 16)  # the vector's rank and what turns


@pytest.mark.parametrize("path", PATHS)
def test_adapters_reach_every_product_but_what_heads_make(path):
    """As numpy adds them; on the heads' own matrices they are refused by name."""
    checkpoint = opened()
    reference, native = pair(checkpoint, path)
    shapes = {"q_a": (20, 68), "q_b": (6 * 48, 20), "kv_a": (64, 68), "o": (68, 6 * 32)}
    rng = np.random.default_rng(3)

    def drawn(*shape):
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    deltas = {
        f"layers.{layer}.{name}": LowRank(drawn(4, columns), drawn(rows, 4))
        for layer in range(2)
        for name, (rows, columns) in shapes.items()
    }
    ids = rng.integers(0, 300, 40).tolist()
    logits = []
    for runner in (reference, native):
        runner.allocate_kv(num_blocks=16, block_size=8)
        runner.add_adapter(1, Adapter(deltas, {}))
        logits.append(run(runner, [part(ids, 0), part(ids, 1)], [1, 0]))
    theirs, ours = logits
    assert np.linalg.norm(ours - theirs) <= 2e-6 * np.linalg.norm(theirs)
    assert np.abs(ours[:40] - ours[40:]).max() > 0.1
    of_heads = {"layers.0.kv_b": LowRank(drawn(4, 48), drawn(6 * 64, 4))}
    with pytest.raises(ValueError, match=r"layers\.0\.kv_b is not part of this model"):
        native.add_adapter(2, Adapter(of_heads, {}))


def test_an_int8_cache_is_refused():
    """By the flag's name."""
    options = EngineOptions(
        model=f"embedded:random?{LATENT_SHAPES[QUERY][0]}", kv_cache_dtype="int8"
    )
    with pytest.raises(
        ConfigError, match=r"--kv-cache-dtype must be auto, not int8: .* has latent"
    ):
        fit(open_model(options.model), options)
