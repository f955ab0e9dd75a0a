"""Mixtures of experts in Triton's interpreter: choices, products by expert, and whole models.

`test_interpreter.py` runs this, as it runs `interpreted.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.compute.gpu.formats import MIXED, mixed_checkpoint
from tests.compute.gpu.interpreted_formats import multiply
from tests.compute.gpu.runners import OnHost
from tests.compute.native.test_grouped import draw_matrix
from tests.compute.runners import load_runner
from tests.compute.steps import alone, run_at_random
from weft.compute.gpu.matrices.products import Ending, WideMatrix
from weft.compute.gpu.matrices.routed_experts import ExpertMatrix, RoutedExperts, RoutingSpace
from weft.compute.gpu.matrices.stored_matrix import Numbers, StoredMatrix
from weft.compute.reference.experts import choose
from weft.model.open import open_model
from weft.model.spec import ExpertsSpec

pytestmark = pytest.mark.filterwarnings("ignore")  # of NaN that numpy meets in rows of nobody

HIDDEN, INNER, COUNT = 64, 512, 6  # the matrix from 512 has two parts
SILU = Ending("plain", "silu")
SPEC = ExpertsSpec(count=COUNT, per_token=3, inner_size=INNER)
SPECS = {
    "softmax of all": SPEC,
    "softmax of its own, scaled": replace(SPEC, is_normalized=True, scale=2.5),
    "softmax, of two groups of three": replace(SPEC, num_groups=3, groups_per_token=2),
    "softmax with a correction": replace(
        SPEC, has_correction=True, is_normalized=True, epsilon=1e-12, scale=0.5
    ),
    "sigmoids": replace(SPEC, is_sigmoid=True, has_correction=True),
    "sigmoids, of two groups of three": replace(
        SPEC, is_sigmoid=True, has_correction=True, num_groups=3, groups_per_token=2
    ),
    "sigmoids that add up to 1": replace(
        SPEC, is_sigmoid=True, has_correction=True, is_normalized=True, scale=0.5
    ),
    "sigmoids that weigh inputs": replace(SPEC, is_sigmoid=True, weighs_inputs=True),
}


def make_experts(spec):
    """A layer whose matrices from the middle are in few bits; also each expert's matrices."""
    rng = np.random.default_rng(1)
    up = [
        torch.randn(INNER, HIDDEN, generator=torch.Generator().manual_seed(i)) for i in range(COUNT)
    ]
    downs = [Numbers.of(draw_matrix(rng, MIXED[1], HIDDEN, INNER)) for _ in range(COUNT)]
    correction = torch.from_numpy(rng.standard_normal(COUNT).astype(np.float32))
    return (
        RoutedExperts(
            spec,
            WideMatrix.of(
                torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(9)),
                Ending("head"),
            ),
            correction if spec.has_correction else None,
            ExpertMatrix(num_rows=INNER, depth=HIDDEN, ending=SILU, weights=torch.stack(up)),
            ExpertMatrix(num_rows=HIDDEN, depth=INNER, weights=Numbers.stack(downs)),
        ),
        up,
        downs,
    )


@pytest.mark.parametrize("name", SPECS)
def test_experts_are_chosen_and_summed_as_the_reference_does(name):
    """And a row has the same bits alone, where the parts of its products are computed side by side."""
    spec = SPECS[name]
    experts, ups, downs = make_experts(spec)
    rows = torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(3))
    rows[7] = 0  # all of its logits are equal
    space = RoutingSpace.of([experts], 50, torch.float32)
    got = torch.full((50, HIDDEN), float("nan"))
    experts(rows, space, got, 0)
    logits = multiply_head(experts.router, rows)
    correction = None if experts.correction is None else experts.correction.numpy()
    chosen, weights = choose(spec, logits.numpy(), correction)
    assert (space.chosen.view(50, -1).numpy() == chosen).all()
    assert np.allclose(space.weights.view(50, -1).numpy(), weights, rtol=1e-6)
    of_pairs = space.weights.view(50, -1)
    expected = torch.zeros(50, HIDDEN)
    for number in range(COUNT):
        middle = torch.zeros(50, INNER)
        weight = torch.where(torch.from_numpy(chosen == number), of_pairs, 0.0).sum(1)[:, None]
        inputs, factor = (rows * weight, (weight > 0)) if spec.weighs_inputs else (rows, weight)
        WideMatrix.of(ups[number], SILU)(inputs, middle)
        expected += multiply(StoredMatrix.of(downs[number]), middle) * factor
    assert (got - expected).norm() < 1e-5 * expected.norm()
    one = torch.empty(1, HIDDEN)
    for row in (0, 7, 49):
        experts(rows[row : row + 1], space, one, 0)
        assert torch.equal(one[0], got[row])


def multiply_head(router, rows):
    out = torch.empty(len(rows), router.num_outputs)
    router(rows, out)
    return out


QUERY = "layers=1&hidden=64&heads=4&kv_heads=2&intermediate=40&vocab=300"
MODELS = {
    "qwen2_moe, a shared expert": f"{QUERY}&experts=4&shared=24",
    "gpt_oss, biases": f"{QUERY}&experts=4&sinks=true",
}


def check_two_runners(runner, expected):
    """Near each other in random schedules, and the first has the same bits one token at a time."""
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (36, 2)]
    got = run_at_random(runner, sequences, rng, 36)
    near = run_at_random(expected, sequences, rng, 40)
    assert max(np.abs(a - b).max() for a, b in zip(got, near, strict=True)) < 2e-4
    assert alone(runner, sequences[0][:3]).tobytes() == got[0][:3].tobytes()
    assert alone(runner, sequences[1]).tobytes() == got[1].tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_a_mixture_is_the_reference_s_in_any_schedule(name):
    """With and without shared experts, biases and limits."""
    checkpoint = open_model(f"embedded:random?{MODELS[name]}")
    check_two_runners(OnHost(checkpoint), load_runner(checkpoint, compute="reference"))


def test_experts_in_few_bits_are_the_dequantized_ones_in_any_schedule():
    """All experts of a product have its format."""
    checkpoint = mixed_checkpoint(MODELS["qwen2_moe, a shared expert"])
    check_two_runners(OnHost(checkpoint, quantization="stored"), OnHost(checkpoint))
