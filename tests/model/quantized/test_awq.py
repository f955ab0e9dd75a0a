"""AWQ in its gemm form: eight rows to a word, in an order of their own."""

import numpy as np
import pytest

from tests.model.quantized.packers import (
    Rounded,
    assert_same_model,
    awq,
    packed_tensors,
    rounded,
)

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
