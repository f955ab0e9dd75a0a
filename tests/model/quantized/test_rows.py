"""Packed matrices larger than what is unpacked in one go, and some of their rows."""

import tracemalloc

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.quantized.packers import Rounded, awq, gptq, words
from weft.model.open import open_model
from weft.model.quantized.awq import AwqFormat
from weft.model.quantized.compressed import PackedFormat
from weft.model.quantized.format import Parts
from weft.model.quantized.gptq import GptqFormat
from weft.model.weights import Tensor

ROWS, DEPTH, SIZE = 360, 1040, 80  # two chunks of rows, and rows that a chunk does not divide
TYPES = {np.dtype(np.int32): "int32", np.dtype(np.int64): "int64", np.dtype(np.float16): "float16"}


def drawn(bits, size, shuffled):
    rng = np.random.default_rng(bits)
    columns = np.arange(DEPTH) // size
    groups = columns.max() + 1
    return Rounded(
        numbers=rng.integers(0, 2**bits, (ROWS, DEPTH)),
        zeros=rng.integers(1, 2**bits, (ROWS, groups)),
        scales=rng.random((ROWS, groups)).astype(np.float16),
        columns=rng.permutation(columns) if shuffled else columns,
    )


def compressed(matrix, bits):
    """compressed-tensors' tensors, without its library."""
    return {
        "weight_packed": words(matrix.numbers, bits),
        "weight_scale": matrix.scales,
        "weight_shape": np.array([ROWS, DEPTH]),
        "weight_zero_point": np.ascontiguousarray(words(matrix.zeros.T, bits).T),
        "weight_g_idx": matrix.columns.astype(np.int32),
    }


@pytest.mark.parametrize(
    ("form", "pack", "bits", "size", "shuffled"),
    [
        (GptqFormat(4, SIZE, is_offset=True), gptq, 4, SIZE, False),
        (GptqFormat(8, SIZE, is_offset=True), gptq, 8, SIZE, True),
        (GptqFormat(4, 100, is_offset=True), gptq, 4, 100, False),
        (AwqFormat(SIZE), lambda matrix, _: awq(matrix), 4, SIZE, False),
        (PackedFormat(4, SIZE, is_symmetric=False, has_order=True), compressed, 4, SIZE, True),
        (PackedFormat(8, 100, is_symmetric=False, has_order=True), compressed, 8, 100, False),
    ],
)
def test_chunks_and_rows_of_a_packed_matrix_are_those_of_the_whole(
    form, pack, bits, size, shuffled
):
    """Wherever they begin: in the middle of a word, of a chunk; a last group may be short."""
    matrix = drawn(bits, size, shuffled)
    tensors = {name: Tensor(TYPES[a.dtype], a) for name, a in pack(matrix, bits).items()}
    parts = Parts("m.", (ROWS, DEPTH), tensors, dict.fromkeys(tensors, "file"))
    packed = form.read(parts, None)
    assert packed.is_finite()
    for start, stop in ((0, ROWS), (0, 80), (80, 120), (253, 360), (3, 4), (301, 310)):
        some = packed.rows(start, stop).unpacked()
        assert some.data.tobytes() == matrix.meant[start:stop].tobytes()


def test_packed_weights_are_never_all_floats_at_once(tmp_path):
    """While a model is read, no more than a few of its matrices are there as floats."""
    config = {**CONFIG, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    rng = np.random.default_rng(0)
    stored = {}
    for name, values in tensors_of(config, np.float16).items():
        if "_proj" not in name:
            stored[name] = values
            continue
        for part in GptqFormat(4, 32, is_offset=True).parts(*values.shape)[:3]:
            drawn_words = rng.integers(-(2**31), 2**31, part.shape, dtype=np.int32)
            is_scale = part.name == "scales"
            scales = np.full(part.shape, 0.01, np.float16)
            stored[f"{name.removesuffix('weight')}{part.name}"] = (
                scales if is_scale else drawn_words
            )
    scheme = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    written = write_checkpoint(tmp_path / "m", {**config, "quantization_config": scheme}, stored)
    checkpoint = open_model(str(written), dtype="bfloat16")
    tracemalloc.start()
    try:
        load_runner(checkpoint, compute="native")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    largest = 4 * 256 * 512
    assert largest < peak < 6 * largest < 4 * checkpoint.card.num_parameters / 5
