"""Matrices in few bits in Triton's interpreter: what numbers mean, bits, rounding, memory, and a whole engine.

`test_interpreter.py` runs this, as it runs `interpreted.py`.
"""

import numpy as np
import pytest
import torch

import weft
from tests.compute.gpu.formats import MIXED, mixed_checkpoint
from tests.compute.gpu.runners import OnHost
from tests.compute.native.test_grouped import FORMATS, draw_matrix
from tests.compute.steps import alone, run_at_random
from weft.compute.arithmetic.int8 import Int8Rows
from weft.compute.gpu.formats import BY_ROW, row_bytes
from weft.compute.gpu.matrices.stored_matrix import Numbers, StoredMatrix, numbers_by_row
from weft.core.values.types import SamplingParams
from weft.model.weights import Tensor

pytestmark = pytest.mark.filterwarnings("ignore")  # of NaN that numpy meets in rows of nobody


def draw(form, rows, depth, seed=0):
    return draw_matrix(np.random.default_rng(seed), form, rows, depth)


def multiply(matrix, rows):
    """The whole sums of a product, whose parts are added in order."""
    count, width = len(rows), matrix.num_outputs
    out = torch.full((matrix.num_parts * count * width,), float("nan"))
    parts = matrix(rows, out)
    total, *rest = out[: parts * count * width].view(parts, count, width)
    for part in rest:
        total = total + part
    return total


@pytest.mark.parametrize("form", [*FORMATS, BY_ROW], ids=str)
def test_numbers_mean_what_the_format_says(form):
    """A row with a single one picks a column: the kernel's values are those of numpy, bit for bit."""
    matrix = draw(form, 33, 44)
    ones = torch.zeros(44, 64)
    ones[:, :44] = torch.eye(44)
    numbers = Numbers.of(matrix)
    got = multiply(StoredMatrix.of(numbers), ones)
    assert (got.T.numpy() + 0.0).tobytes() == (matrix.float32() + 0.0).tobytes()  # -0.0 is 0.0
    tensors = (numbers.numbers, numbers.scales, numbers.offsets)
    assert sum(t.nbytes for t in tensors if t is not None) == 33 * row_bytes(form, 44)


@pytest.mark.parametrize("form", MIXED, ids=str)
def test_a_row_s_bits_are_the_same_among_any_number_of_rows(form):
    """Parts side by side or in turn, in tiles of any height, near float64."""
    matrix = draw(form, 70, 512)
    rows = torch.randn(70, 512, generator=torch.Generator().manual_seed(1))
    product = StoredMatrix.of(Numbers.of(matrix))
    assert product.num_parts == 2
    many = multiply(product, rows)
    for count in (1, 20, 40):
        assert torch.equal(multiply(product, rows[:count]), many[:count])
    expected = rows.double().numpy() @ matrix.float32().astype(np.float64).T
    assert np.linalg.norm(many.numpy() - expected) < 1e-6 * np.linalg.norm(expected)


def test_floats_are_rounded_to_int8_as_the_cpu_rounds_them():
    """And stored int8 is taken as it is."""
    rng = np.random.default_rng(2)
    values = (rng.standard_normal((50, 70)) * 10.0 ** rng.integers(-9, 9, (50, 1))).astype(
        np.float32
    )
    values[3], values[4] = 0, 1e-31
    expected = Int8Rows.round(values)
    whole = expected.values.astype(np.int16) + 128
    stored = Tensor("int8", expected.values, expected.scales)
    for tensor in (Tensor("float32", values), stored):
        got = numbers_by_row(tensor)
        numbers = got.numbers.transpose(0, 1).reshape(50, -1)[:, :70]
        assert (numbers.numpy() == whole).all()
        assert got.scales[0].numpy().tobytes() == expected.scales.tobytes()


QUERY = "layers=2&hidden=64&heads=4&kv_heads=2&intermediate=99&vocab=300"


def test_any_schedule_gives_the_same_bits_in_every_format():
    """Random mixes, chunks and placements equal one token at a time, and the dequantized model within rounding."""
    checkpoint = mixed_checkpoint(QUERY)
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (40, 3)]
    runner, wide = OnHost(checkpoint, quantization="stored"), OnHost(checkpoint)
    got = run_at_random(runner, sequences, rng, 36)
    expected = run_at_random(wide, sequences, rng, 40)
    assert max(np.abs(a - b).max() for a, b in zip(got, expected, strict=True)) < 2e-4
    assert min(a.std() for a in expected) > 0.1  # flat logits would agree about nothing
    assert alone(runner, sequences[1]).tobytes() == got[1].tobytes()
    assert alone(runner, sequences[0][:6]).tobytes() == got[0][:6].tobytes()


def test_an_engine_answers_the_same_alone_cached_and_preempted():
    """With a head of eight bits beside four, and a pool so small that two sequences cannot both stay in it."""
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=4, ignore_eos=True)
    prompts = [{"prompt_token_ids": list(range(start, start + 14))} for start in (5, 50)]
    options = {"block_size": 4, "num_gpu_blocks_override": 9, "max_model_len": 20}
    model = f"embedded:random?{QUERY}"
    with weft.LLM(model, compute="gpu", quantization="int4", **options) as llm:
        many = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
        again = llm.generate(prompts[1], params, use_tqdm=False)
    assert again[0].outputs[0].token_ids == many[1]
