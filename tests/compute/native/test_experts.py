"""Layers of experts in the core: rounded weights as numpy computes them, adapters, and ties of the router."""

import numpy as np
import pytest

from tests.compute.native.models import errors, pair
from weft.compute.native import usable_paths
from weft.compute.reference.experts import choose
from weft.model.lora import Adapter, LowRank
from weft.model.open import open_model
from weft.model.spec import ExpertsSpec

MODEL = (
    "embedded:random?hidden=64&heads=4&kv_heads=2&intermediate=48&vocab=300&experts=5"
    "&experts_per_token=2&shared=70"
)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_experts_agree_with_the_reference(quantization, path):
    """Both round weights and rows alike; what is left comes of sums in float32 around them."""
    [error] = errors(open_model(MODEL), path, quantization=quantization)
    assert error <= 0.02


def test_adapters_on_experts_are_refused():
    """By name, should one get past what reads them; on the shared expert they are taken."""
    _, runner = pair(open_model(MODEL), usable_paths()[0])
    zeros = np.zeros((4, 64), np.float32)
    runner.add_adapter(
        1, Adapter({"layers.0.up": LowRank(zeros, np.zeros((70, 4), np.float32))}, {})
    )
    of_expert = {"layers.0.experts.0.up": LowRank(zeros, np.zeros((48, 4), np.float32))}
    with pytest.raises(ValueError, match=r"layers\.0\.experts\.0\.up is of experts"):
        runner.add_adapter(2, Adapter(of_expert, {}))


def test_of_equal_logits_the_lower_number_is_chosen():
    """And its weights are those of all experts, or of a row's own."""
    logits = np.array([[1, 2, 2, 2, 0], [0, 0, 0, 0, 0]], np.float32)
    chosen, weights = choose(ExpertsSpec(5, 2, 1, is_normalized=True), logits)
    np.testing.assert_array_equal(chosen, [[1, 2], [0, 1]])
    np.testing.assert_array_equal(weights, np.full((2, 2), 0.5, np.float32))
    _, weights = choose(ExpertsSpec(5, 2, 1), logits)
    np.testing.assert_allclose(weights[1], [0.2, 0.2], rtol=1e-6)
