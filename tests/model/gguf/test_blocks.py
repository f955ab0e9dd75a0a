"""Every type of block against the dequantisation of the `gguf` package."""

import tracemalloc

import gguf
import numpy as np
import pytest

from weft.model.files.safetensors_files import MappedFiles
from weft.model.gguf.blocks import TYPES, UNREAD_TYPES
from weft.model.gguf.header import GgufTensor
from weft.model.gguf.matrices import read_tensor
from weft.model.quantized.packed import PackedMatrix

ROWS, BLOCKS = 24, 3
HALVES = {  # where float16 scales and minimums lie in a block
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
PACKED = {kind.name: kind for kind in TYPES.values() if kind.form is not None}


def random_blocks(name):
    """Any bits at all for numbers and small scales; the float16 among them are numbers of all sizes."""
    kind = PACKED[name]
    rng = np.random.default_rng(len(name))
    blocks = rng.integers(0, 256, (ROWS * BLOCKS, kind.num_bytes), dtype=np.uint8)
    for start in HALVES.get(name, ()):
        halves = (
            rng.standard_normal(len(blocks)) * 10.0 ** rng.integers(-6, 2, len(blocks))
        ).astype("<f2")
        blocks[:, start : start + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = np.arange(len(blocks)) * 3
    return blocks.reshape(ROWS, -1)


def matrix_of(path, name, data, order=None, widened="float32"):
    (path / "data").write_bytes(b"\0" * 8 + data.tobytes())
    kind = PACKED[name]
    shape = (len(data), data.shape[1] // kind.num_bytes * kind.num_weights)
    stored = GgufTensor(path / "data", "some.weight", kind, shape, 8)
    return read_tensor(MappedFiles(), stored, order, None, widened=widened)


def test_the_table_is_that_of_the_package():
    """Numbers, names and sizes; each type that is there is read or refused by name."""
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {n: (k.name, k.num_weights, k.num_bytes) for n, k in TYPES.items()} == {
        number: sizes[number] for number in TYPES
    }
    assert {
        number: size[0] for number, size in sizes.items() if number not in TYPES
    } == UNREAD_TYPES


@pytest.mark.parametrize("name", PACKED)
def test_values_are_those_of_the_package_bit_for_bit(tmp_path, name):
    """Widened, and in the groups that kernels compute with."""
    data = random_blocks(name)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    matrix = matrix_of(tmp_path, name, data)
    assert isinstance(matrix, PackedMatrix)
    assert matrix.is_finite()
    assert np.array_equal(matrix.unpacked().data, expected)
    assert matrix.group_format.can_be_computed
    assert np.array_equal(matrix.grouped().float32(), expected)


def test_rows_come_in_the_order_that_is_wanted(tmp_path):
    """And some of them alone."""
    data, order = random_blocks("Q4_K"), np.random.default_rng(1).permutation(ROWS)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q4_K)[order]
    matrix = matrix_of(tmp_path, "Q4_K", data, order)
    assert np.array_equal(matrix.unpacked().data, expected)
    assert np.array_equal(matrix.rows(5, 19).grouped().float32(), expected[5:19])


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00])
def test_scales_and_minimums_that_are_no_numbers_are_seen(tmp_path, name, bits):
    """Infinite or NaN, in one block."""
    for start in HALVES[name]:
        data = random_blocks(name)
        data[7, start : start + 2] = (bits & 255, bits >> 8)
        assert not matrix_of(tmp_path, name, data).is_finite()
        assert not matrix_of(tmp_path, name, data).grouped().is_finite()


def test_scales_of_zero_are_values_of_zero(tmp_path):
    """Nothing is divided by them."""
    matrix = matrix_of(tmp_path, "Q6_K", np.zeros_like(random_blocks("Q6_K")))
    assert not matrix.unpacked().data.any()


def test_a_matrix_is_never_whole_in_more_than_it_is_widened_to(tmp_path):
    """An embedding of a billion weights would take gigabytes beside the two that are wanted."""
    matrix = matrix_of(tmp_path, "Q6_K", np.tile(random_blocks("Q6_K"), (400, 1)), None, "bfloat16")
    tracemalloc.start()
    try:
        wide = matrix.unpacked()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert wide.dtype == "bfloat16"
    assert peak < 2 * wide.data.nbytes
