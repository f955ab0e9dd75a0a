"""AWQ in its gemm form: eight rows to a word, in an order of their own."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.quantized.packers import (
    Rounded,
    assert_same_model,
    awq,
    packed_tensors,
    rounded,
    write,
)
from weft.core.errors import ConfigError
from weft.model.open import open_model

SCHEME = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 8,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}
OLD_NAMES = {"quant_method": "awq", "w_bit": 4, "q_group_size": 8, "version": "GEMM"}
Q = "model.layers.1.self_attn.q_proj"


def packing(size=8):
    """A packer of matrices for `packed_tensors`."""

    def pack(values):
        matrix = rounded(values, 4, size)
        return awq(matrix), matrix.meant

    return pack


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        (SCHEME, 8),
        (OLD_NAMES, 8),
        ({**SCHEME, "group_size": 16, "backend": "autoawq", "format": "gemm"}, 16),
        ({**SCHEME, "group_size": -1, "checkpoint_format": "gemm"}, None),
    ],
)
def test_packed_weights_are_read_as_what_they_mean(tmp_path, compute, scheme, size):
    """(number - zero) * scale in float32."""
    stored, meant = packed_tensors(packing(size))
    assert_same_model(tmp_path, scheme, stored, meant, compute)


def test_rows_are_interleaved_in_a_word():
    """Rows 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first."""
    numbers = np.arange(8)[:, None]
    ones = np.ones((8, 1))
    assert awq(Rounded(numbers, numbers, ones, np.zeros(1, int)))["qweight"][0, 0] == 0x75316420


def test_modules_that_were_not_converted_are_read_as_they_are(tmp_path):
    """They lie in the file under their usual names."""
    stored, meant = packed_tensors(packing(), except_for=["layers.0.mlp.gate_proj", "v_proj"])
    scheme = {**SCHEME, "modules_to_not_convert": ["layers.0.mlp.gate_proj", "v_proj"]}
    assert_same_model(tmp_path, scheme, stored, meant, "native")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"bits": 8}, "bits is 8; this runner reads 4"),
        ({"version": "gemv"}, "version is 'gemv'; this runner reads nothing or 'gemm'"),
        ({"version": "gemv_fast"}, "version is 'gemv_fast'"),
        ({"version": "exllama"}, "version is 'exllama'"),
        ({"version": "marlin"}, "version is 'marlin'"),
        ({"format": "llm-awq"}, "format is 'llm-awq'"),
        ({"backend": "llm-awq"}, "backend is 'llm-awq'"),
        ({"zero_point": False}, "zero_point is False"),
        ({"group_size": 1.5}, "group_size is 1.5"),
        ({"modules_to_not_convert": "v_proj"}, "modules_to_not_convert is 'v_proj'"),
        ({"dynamic": {".*": {"bits": 8}}}, "dynamic has"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, keys, words):
    """The message says which key, and what would be read."""
    with pytest.raises(ConfigError) as error:
        open_model(write(tmp_path / "m", {**SCHEME, **keys}, packed_tensors(packing())[0]))
    assert words in str(error.value)
    assert "quantization_config" in str(error.value)


@pytest.mark.parametrize(
    ("part", "tensor", "words"),
    [
        ("scales", None, "scales is missing"),
        ("qweight", np.ones((2, 16), np.int32), r"qweight has shape \[2, 16\]"),
        ("qzeros", np.ones((2, 2), np.float32), "qzeros is float32; .* asks for int32"),
        ("scales", np.full((2, 16), np.inf, np.float32), "scales holds NaN or infinity"),
    ],
)
def test_tensors_that_are_missing_misshapen_or_no_numbers_are_named(tmp_path, part, tensor, words):
    """Before anything is computed."""
    stored = packed_tensors(packing())[0]
    stored.pop(f"{Q}.{part}")
    stored |= {} if tensor is None else {f"{Q}.{part}": tensor}
    with pytest.raises(ConfigError, match=rf"tensor {Q}\.{words}"):
        load_runner(open_model(write(tmp_path / "m", SCHEME, stored)))
