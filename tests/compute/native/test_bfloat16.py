"""bfloat16 beside numpy, which computes in float32 with the same weights."""

import pytest

from tests.compute.native.models import SHAPES, errors
from weft.compute.native import usable_paths
from weft.model.open import open_model


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("shape", ["plain", "odd sizes", "many heads"])
def test_a_model_stays_near_the_reference(shape, path):
    """Weights are the same; cached keys and values are rounded, and activations where the CPU multiplies them so."""
    checkpoint = open_model(f"embedded:random?{SHAPES[shape][0]}", dtype="bfloat16")
    assert 0 < max(errors(checkpoint, path, dtype="bfloat16", lengths=(60, 1, 33))) <= 0.005
