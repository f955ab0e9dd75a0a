"""A KV cache of int8: near the answers of a whole one, as numpy rounds it, in half the memory."""

import numpy as np
import pytest

from tests.compute.native.models import SHAPES, errors, make_runner
from tests.compute.steps import run_at_random
from weft.compute.native import resident_bytes, usable_paths
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.engine.start.fit import fit
from weft.model.open import open_model

LENGTHS = (70, 5, 33)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("shape", SHAPES)
def test_keys_and_values_are_rounded_as_numpy_rounds_them(shape, path):
    """In float32 around the cache; a value on the edge between two roundings may fall elsewhere."""
    checkpoint = open_model(f"embedded:random?{SHAPES[shape][0]}")
    assert max(errors(checkpoint, path, LENGTHS, kv_cache_dtype="int8")) <= 0.002


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_stay_near_those_of_a_whole_cache(shape, dtype):
    """A relative error of at most 0.03, and not 0: it is rounded. States of recurrences keep errors of the rows before.

    With experts, of most tokens: where a router is nearly undecided one goes to other experts.
    """
    random = np.random.default_rng(1)
    sequences = [random.integers(0, 300, length).tolist() for length in LENGTHS]
    whole, rounded = (
        run_at_random(make_runner(shape, name), sequences, np.random.default_rng(2), max_chunk=20)
        for name in (dtype, f"{dtype}+int8")
    )
    for ours, theirs in zip(rounded, whole, strict=True):
        errors = np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)
        most = {"mamba": 0.04, "gated delta nets": 0.06}.get(shape, 0.03)
        assert 0 < np.quantile(errors, 0.5 if "expert" in shape else 1.0) <= most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_takes_a_byte_an_element_and_a_scale_a_head(dtype):
    """So many more tokens fit the same memory, and the card says it."""
    spec = open_model("embedded:random?hidden=64&heads=4&kv_heads=2&head_dim=64&layers=3").spec
    sizes = resident_bytes(spec, dtype, None, "int8")
    assert sizes.kv_dtype == "int8"
    assert sizes.kv_per_token == 3 * 2 * 2 * (64 + 4)
    assert sizes.weights == resident_bytes(spec, dtype).weights


def configured(**flags):
    options = EngineOptions(**flags)
    checkpoint = open_model(options.model)
    return fit(checkpoint, options).config


def test_the_configuration_has_what_the_cache_is():
    """The engine makes blocks of that size, and tells the type to whoever asks."""
    whole = configured(compute="native").cache_config
    rounded = configured(compute="native", kv_cache_dtype="int8").cache_config
    assert rounded.kv_cache_dtype == "int8"
    assert rounded.block_bytes < 0.6 * whole.block_bytes


@pytest.mark.parametrize("value", ["fp8", "bfloat16", ""])
def test_another_type_is_refused(value):
    """With what is allowed."""
    with pytest.raises(
        ConfigError, match=r'--kv-cache-dtype ".*" is unknown; choose from auto, int8'
    ):
        configured(kv_cache_dtype=value)


def test_a_model_that_keeps_nothing_refuses_it():
    """Nothing would be rounded."""
    with pytest.raises(ConfigError, match="--kv-cache-dtype has no effect on embedded:echo"):
        configured(model="embedded:echo", kv_cache_dtype="int8")
