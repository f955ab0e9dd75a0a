"""GPTQ: both versions of its zeros, both widths, columns in and out of order."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.quantized.packers import (
    assert_same,
    assert_same_model,
    gptq,
    packed_tensors,
    rounded,
    word,
    write,
)
from weft.core.errors import ConfigError
from weft.model.open import open_model

SCHEME = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False, "sym": False}
Q = "model.layers.1.self_attn.q_proj"


def packing(bits=4, size=8, *, version=1, with_order=True, **how):
    """A packer of matrices for `packed_tensors`."""

    def pack(values):
        matrix = rounded(values, bits, size, **how)
        return gptq(matrix, bits, version=version, with_order=with_order), matrix.meant

    return pack


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize(
    ("keys", "how"),
    [
        ({}, {}),
        ({"checkpoint_format": "gptq", "sym": True}, {"symmetric": True}),
        ({"checkpoint_format": "gptq_v2"}, {"version": 2}),
        (
            {"format": "gptq_v2", "checkpoint_format": "gptq_v2", "bits": 8},
            {"version": 2, "bits": 8},
        ),
        ({"bits": 8, "group_size": 16}, {"bits": 8, "size": 16}),
        ({"group_size": -1}, {"size": None}),
        ({"desc_act": True}, {"shuffled": True}),
        ({"desc_act": True, "bits": 8, "static_groups": True}, {"shuffled": True, "bits": 8}),
        ({}, {"with_order": False}),
        ({"pack_dtype": "int32", "lm_head": False}, {"scale_dtype": np.float32}),
    ],
)
def test_packed_weights_are_read_as_what_they_mean(tmp_path, compute, keys, how):
    """(number - zero) * scale in float32, whichever form the file has."""
    stored, meant = packed_tensors(packing(**how))
    assert_same_model(tmp_path, {**SCHEME, **keys}, stored, meant, compute)


def test_zeros_of_the_first_version_lie_there_less_one():
    """The middle of 16 is stored as 7, and of 256 as 127, eight and four to a word: as published files do."""
    values = np.ones((8, 8), np.float32)
    four = gptq(rounded(values, 4, None, symmetric=True), 4)["qzeros"]
    eight = gptq(rounded(values, 8, None, symmetric=True), 8)["qzeros"]
    assert four.tolist() == [[2004318071]]
    assert eight.tolist() == [[2139062143, 2139062143]]


def test_a_zero_of_zero_borrows_from_its_neighbour(tmp_path):
    """Its writer took ones from whole words; numbers above it in the word come out whole."""
    matrix = rounded(np.abs(tensors_of()[Q + ".weight"]))
    assert not matrix.zeros.any()
    stored, meant = packed_tensors(packing())
    stored |= {f"{Q}.{part}": tensor for part, tensor in gptq(matrix).items()}
    meant[Q + ".weight"] = matrix.meant
    assert_same_model(tmp_path, SCHEME, stored, meant, "reference")


def test_a_word_holds_its_first_column_lowest():
    """As the files that AutoGPTQ writes."""
    assert word(range(8), 4) == 0x76543210


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_the_head_may_be_packed_and_layers_left_out(tmp_path, compute):
    """The file says which layers are packed; names of layers that are not need no matching."""
    pack = packing()
    stored, meant = packed_tensors(pack, except_for=["layers.0.mlp.down_proj", "k_proj"])
    parts, meant["lm_head.weight"] = pack(stored.pop("lm_head.weight"))
    stored |= {f"lm_head.{part}": tensor for part, tensor in parts.items()}
    scheme = {**SCHEME, "lm_head": True, "dynamic": {r"-:.*\.k_proj": {}, "-:.*down": {}}}
    assert_same_model(tmp_path, scheme, stored, meant, compute)


def test_biases_of_zeros_that_no_layer_has_are_passed_over(tmp_path):
    """Early writers gave every layer a bias; one that is not zero is no such thing."""
    stored, meant = packed_tensors(packing())
    stored[f"{Q}.bias"] = np.zeros(16, np.float16)
    assert_same_model(tmp_path, SCHEME, stored, meant, "native")
    stored[f"{Q}.bias"][3] = 0.5
    checkpoint = open_model(write(tmp_path / "b", SCHEME, stored))
    with pytest.raises(ConfigError, match=r"q_proj\.bias has no place .* and is not zero"):
        load_runner(checkpoint)


def test_a_dtype_that_was_asked_for_rounds_the_values(tmp_path):
    """As it rounds those that were never packed."""
    stored, meant = packed_tensors(packing())
    plain = write_checkpoint(tmp_path / "meant", tensors=meant)
    name = write(tmp_path / "packed", SCHEME, stored)
    for compute in ("reference", "native"):
        assert_same(name, plain, dtype="bfloat16", compute=compute)
    stored[f"{Q}.scales"] = np.full_like(stored[f"{Q}.scales"], 6e4)
    large = open_model(write(tmp_path / "large", SCHEME, stored), dtype="float16")
    with pytest.raises(ConfigError, match=r"q_proj\.scales: its values do not fit float16"):
        load_runner(large)


def test_int8_products_round_the_values_again(tmp_path):
    """To what the floats that they mean are rounded to."""
    stored, meant = packed_tensors(packing())
    plain = write_checkpoint(tmp_path / "meant", tensors=meant)
    name = write(tmp_path / "packed", SCHEME, stored)
    for compute in ("reference", "native"):
        assert_same(name, plain, compute=compute, quantization="int8")


def test_packed_weights_that_no_config_explains_are_refused(tmp_path):
    """The message says what is there."""
    stored, _ = packed_tensors(packing())
    with pytest.raises(
        ConfigError, match=r"q_proj\.qweight is there, and config\.json does not say"
    ):
        open_model(str(write_checkpoint(tmp_path / "m", CONFIG, stored)))
