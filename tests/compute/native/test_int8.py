"""int8: the same bits as numpy on every path, and about the answers of the weights as they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import errors, pair
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.model.checkpoints import write_checkpoint
from weft.compute.arithmetic.int8 import Int8Rows, multiply
from weft.compute.native import _core, resident_bytes, usable_paths
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer


def native_product(path, rows, weights):
    out = np.full((len(rows), len(weights)), np.nan, np.float32)
    _core.multiply_int8(path, rows, weights, out)
    return out


def twin(rows, weights):
    return multiply(rows, Int8Rows.round(weights))


@pytest.mark.parametrize("path", usable_paths())
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.sampled_from([1, 2, 3, 5, 12, 13, 25, 97, 200]),
    num_columns=st.integers(1, 140),
    depth=st.sampled_from([1, 4, 15, 16, 17, 64, 255, 1000, 2048, 2049, 5000]),
    spread=st.sampled_from([1e-33, 1e-20, 1.0, 1e15]),
)
def test_a_product_is_the_twin_s(path, seed, num_rows, num_columns, depth, spread):
    """Bit for bit, for any size: sums are whole numbers, and everything else is rounded alike."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((num_rows, depth)) * spread).astype(np.float32)
    weights = rng.standard_normal((num_columns, depth)).astype(np.float32)
    assert native_product(path, rows, weights).tobytes() == twin(rows, weights).tobytes()


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize(("of_rows", "of_weights"), [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_the_largest_sums_do_not_overflow(path, of_rows, of_weights):
    """Every element at its most: what pairs of products in 16 bits could not hold."""
    depth = 1 << 17
    rows = np.full((2, depth), of_rows, np.float32)
    weights = np.full((33, depth), of_weights, np.float32)
    got = native_product(path, rows, weights)
    assert got.tobytes() == twin(rows, weights).tobytes()
    assert np.allclose(got, of_rows * of_weights * depth, rtol=1e-6)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(path, value):
    """The row that holds it becomes NaN; the others keep their bits. So with rows of weights."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((15, 40)).astype(np.float32)
    weights = rng.standard_normal((50, 40)).astype(np.float32)
    whole = native_product(path, rows, weights)
    rows[4, 33] = value
    weights[45, 0] = value
    got = native_product(path, rows, weights)
    assert np.isnan(got[4]).all()
    assert np.isnan(got[:, 45]).all()
    others = np.ones_like(got, bool)
    others[4], others[:, 45] = False, False
    assert got[others].tobytes() == whole[others].tobytes()


@pytest.mark.parametrize("path", usable_paths())
def test_a_row_of_zeros_gives_zeros(path):
    """Nothing is divided by its largest magnitude."""
    weights = np.ones((3, 20), np.float32)
    assert native_product(path, np.zeros((2, 20), np.float32), weights).tolist() == [[0.0] * 3] * 2
    assert native_product(path, weights, np.zeros((2, 20), np.float32)).tolist() == [[0.0] * 2] * 3


@pytest.mark.parametrize("path", usable_paths())
def test_a_product_of_sizes_that_do_not_fit_is_refused(path):
    """Nothing is read or written out of bounds."""
    ones = np.ones((2, 20), np.float32)
    with pytest.raises(ValueError, match="wide"):
        _core.multiply_int8(path, np.ones((2, 19), np.float32), ones, np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="out must"):
        _core.multiply_int8(path, ones, ones, np.ones((2, 3), np.float32))


SHAPE = "embedded:random?hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301"


OPT = {
    "model_type": "opt",
    "vocab_size": 301,
    "hidden_size": 70,
    "ffn_dim": 99,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "max_position_embeddings": 100,
}


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("config", [None, OPT, {**OPT, "word_embed_proj_dim": 24}])
def test_a_model_computes_what_the_reference_computes(config, path, tmp_path):
    """In float32 around int8 products; a value on the edge between two roundings may fall elsewhere."""
    name = SHAPE if config is None else str(write_checkpoint(tmp_path, config))
    assert errors(open_model(name), path, quantization="int8")[0] <= 0.004


def test_the_answers_of_a_trained_model_stay_near():
    """All of embedded:tiny in int8, its head too: probabilities move by little."""
    assert 0 < divergence("int8") < 0.01


TEXT = (
    "<|im_start|>user\nWhat is a cat?<|im_end|>\n<|im_start|>assistant\n"
    "A cat is a small animal that many people keep as a pet.<|im_end|>"
)


def divergence(quantization):
    """The mean KL of what the core says of each token of a text."""
    checkpoint = open_model("embedded:tiny")
    ids = Tokenizer.from_files(checkpoint.tokenizer_files).encode(TEXT)
    whole = log_probabilities(load_runner(checkpoint, compute="reference"), ids)
    rounded = load_runner(checkpoint, compute="native", quantization=quantization)
    return (np.exp(whole) * (whole - log_probabilities(rounded, ids))).sum(axis=1).mean()


def log_probabilities(runner, ids):
    runner.allocate_kv(num_blocks=8, block_size=16)
    logits = runner.forward(step([Part(ids, len(ids), list(range(8)), 0, len(ids))], 16))
    logits = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("query", ["", "&qk_norm=true"])
def test_the_card_has_what_int8_takes(dtype, query):
    """A byte a weight and a scale for each output; the embedding as it was."""
    checkpoint = open_model(SHAPE + query, dtype=dtype)
    spec = checkpoint.spec
    whole = resident_bytes(spec, dtype).weights
    rounded = resident_bytes(spec, dtype, "int8").weights
    width = 2 if dtype == "bfloat16" else 4
    embedding = spec.vocab_size * spec.hidden_size * width
    matrices = (whole - embedding) // width
    assert embedding + matrices < rounded < embedding + 1.2 * matrices


@pytest.mark.parametrize("path", usable_paths())
def test_hidden_states_are_not_rounded_on_their_way_out(path):
    """A model that pools has no head to round: what comes after its last norm is given as it is."""
    checkpoint = open_model(SHAPE, runner="pooling")
    expected, states = map(last_state, pair(checkpoint, path, quantization="int8"))
    assert states.shape == (1, 68)
    assert np.linalg.norm(states - expected) <= 0.004 * np.linalg.norm(expected)
    whole_numbers = states * (127 / np.abs(states).max())
    assert np.abs(whole_numbers - np.rint(whole_numbers)).max() > 0.1


def last_state(runner):
    runner.allocate_kv(num_blocks=1, block_size=16)
    return runner.forward(step([Part([5, 99, 7, 250], 4, [0], 0, 1)], 16))


def test_the_card_of_a_model_that_pools_counts_no_scales_of_a_head():
    """What hands on hidden states keeps its type."""
    spec = open_model(SHAPE, runner="pooling").spec
    generating = open_model(SHAPE).spec
    rounded = resident_bytes(generating, "float32", "int8").weights
    pooling = resident_bytes(spec, "float32", "int8").weights
    hidden, vocab, outputs = 96, 320, 96  # whole panels of 32
    assert rounded - pooling == hidden * vocab + 4 * vocab - 4 * hidden * outputs
