"""Mamba-2 layers in numpy: chunks, rounding, and the functions that they are made of."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import alone
from weft.compute.arithmetic import exact
from weft.compute.arithmetic.convolution import Channels
from weft.compute.arithmetic.mamba import Mamba2
from weft.compute.arithmetic.mamba1 import Mamba1
from weft.model.open import open_model
from weft.model.recurrence import Mamba1Spec, Mamba2Spec

SPEC = Mamba2Spec(num_heads=6, head_dim=5, state_dim=7, num_groups=3, conv_width=4)
FIRST = Mamba1Spec(inner_size=40, state_dim=7, step_rank=3, conv_width=4, has_norms=True)


def make_layer(spec: Mamba1Spec | Mamba2Spec = SPEC, seed=0) -> Mamba1 | Mamba2:
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    bias = draw(spec.conv_size) if spec.has_conv_bias else None
    channels = Channels(draw(spec.conv_size, spec.conv_width), bias)
    vectors = {name: draw(*shape) for name, shape in spec.vectors.items()}
    if isinstance(spec, Mamba1Spec):
        return Mamba1(spec, channels, np.float32(1e-5), **vectors)
    return Mamba2(spec, channels, np.float32(1e-5), **vectors)


@pytest.mark.parametrize("spec", [SPEC, FIRST], ids=["Mamba-2", "Mamba"])
def test_rows_are_the_same_bits_in_any_chunks(spec):
    """And so is the state that they leave."""
    layer = make_layer(spec)
    width = sum(spec.products.values())
    rows = np.random.default_rng(1).standard_normal((23, width)).astype(np.float32)
    whole, parts = (np.zeros(spec.state_size, np.float32) for _ in range(2))
    expected = layer(rows, whole)
    chunks = np.split(rows, [1, 2, 4, 16])
    got = np.concatenate([layer(chunk, parts) for chunk in chunks])
    assert expected.tobytes() == got.tobytes()
    assert whole.tobytes() == parts.tobytes()


def test_functions_of_sums_and_products_are_near_the_true_ones():
    """exp within 2 units in the last place; its logarithm of one more, too."""
    x = np.linspace(-80, 80, 20001, dtype=np.float32)
    true = x.astype(np.float64)
    eps = np.finfo(np.float32).eps
    assert np.abs(exact.exp(x) / np.exp(true) - 1).max() <= 2 * eps
    assert np.abs(exact.softplus(x) / np.logaddexp(0, true) - 1).max() <= 2 * eps
    assert np.abs(exact.sigmoid(x) - 1 / (1 + np.exp(-true))).max() <= eps
    assert np.abs(exact.silu(x) - true / (1 + np.exp(-true))).max() <= 80 * eps


def test_what_is_no_number_stays_so():
    """A row with NaN must show it; what is too large or too small for a float does not become NaN."""
    given = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert np.isnan(exact.exp(given)).tolist() == [True, False, False]
    assert np.isnan(exact.softplus(given)).tolist() == [True, False, False]


@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.1), ("int4", 0.5)])
def test_linear_layers_are_rounded_and_the_answer_stays_near(quantization, error):
    """Other than without, and by no more than so many bits lose."""
    model = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&mamba=8"
    ids = np.random.default_rng(1).integers(3, 300, 40).tolist()
    whole = alone(load_runner(open_model(model), compute="reference"), ids)
    runner = load_runner(open_model(model), compute="reference", quantization=quantization)
    rounded = alone(runner, ids)
    assert 0 < np.linalg.norm(rounded - whole) < error * np.linalg.norm(whole)
