"""Mamba-2 layers of the core: the same bits as numpy on every path, and about the answers of whole models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import errors
from tests.compute.test_mamba import make_layer
from weft.compute.mamba import Mamba2
from weft.compute.native import _core, usable_paths
from weft.compute.native.runner import native_mamba
from weft.model.open import open_model
from weft.model.recurrence import Mamba2Spec

MODEL = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&vocab=320&mamba=8"


def native_rows(path, layer: Mamba2, rows, state, is_begun, num_threads=1):
    """What the core makes of them; `state` goes on in place."""
    vectors = [
        np.ascontiguousarray(layer.conv.T).reshape(-1),
        np.zeros(0, np.float32) if layer.conv_bias is None else layer.conv_bias,
        *(layer.step_bias, layer.a_log, layer.skip, layer.norm),
    ]
    out = np.full((len(rows), layer.spec.inner_size), np.nan, np.float32)
    spec, eps = native_mamba(layer.spec), float(layer.norm_eps)
    _core.mamba_rows(path, num_threads, spec, eps, vectors, rows, is_begun, state, out)
    return out


@pytest.mark.parametrize("path", usable_paths())
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_groups=st.integers(1, 3),
    heads_of_group=st.integers(1, 3),
    head_dim=st.sampled_from([1, 5, 16, 31, 32, 33, 64]),
    state_dim=st.sampled_from([1, 7, 16, 128]),
    conv_width=st.integers(2, 5),
    has_conv_bias=st.booleans(),
    limits=st.sampled_from([(0.0, float("inf")), (0.2, 1.5)]),
    num_threads=st.integers(1, 3),
)
def test_rows_and_states_are_the_twin_s(  # noqa: PLR0913, PLR0917
    path,
    seed,
    num_groups,
    heads_of_group,
    head_dim,
    state_dim,
    conv_width,
    has_conv_bias,
    limits,
    num_threads,
):
    """Bit for bit, for any size, from zeros and from a state."""
    spec = Mamba2Spec(
        num_heads=num_groups * heads_of_group,
        head_dim=head_dim,
        state_dim=state_dim,
        num_groups=num_groups,
        conv_width=conv_width,
        has_conv_bias=has_conv_bias,
        min_step=limits[0],
        max_step=limits[1],
    )
    layer, rng = make_layer(spec, seed), np.random.default_rng(seed)
    ours, theirs = np.full(spec.state_size, np.nan, np.float32), np.zeros(spec.state_size, "f4")
    for is_begun, num_rows in ((False, 5), (True, 1), (True, 2 * conv_width)):
        rows = rng.standard_normal((num_rows, spec.in_size)).astype(np.float32)
        expected = layer(rows, theirs)
        got = native_rows(path, layer, rows, ours, is_begun, num_threads)
        assert got.tobytes() == expected.tobytes()
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38])
def test_what_is_no_number_is_none_in_both(path, value):
    """From that row on, and where numpy has a number the core has the same one."""
    layer = make_layer()
    rows = np.random.default_rng(1).standard_normal((9, layer.spec.in_size)).astype(np.float32)
    rows[4] = value
    with np.errstate(all="ignore"):
        expected = layer(rows, np.zeros(layer.spec.state_size, np.float32))
    got = native_rows(path, layer, rows, np.zeros(layer.spec.state_size, np.float32), False)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.isfinite(got[:4]).all()


def test_sizes_that_do_not_fit_are_refused():
    """Rows that are too narrow, a state that is too small, and another layer's vectors."""
    layer = make_layer()
    rows = np.zeros((3, layer.spec.in_size), np.float32)
    state = np.zeros(layer.spec.state_size, np.float32)
    for case in (
        (layer, rows[:, 1:].copy(), state),
        (layer, rows, state[1:].copy()),
        (replace(layer, skip=layer.skip[1:].copy()), rows, state),
    ):
        with pytest.raises(ValueError, match="must have the sizes of the layer"):
            native_rows("portable", *case, False)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize(("quantization", "most"), [(None, 1e-5), ("int8", 0.02), ("int4", 0.02)])
def test_a_model_computes_what_the_reference_computes(path, quantization, most):
    """Around linear layers as they are, and as they are rounded."""
    rounding = {} if quantization is None else {"quantization": quantization}
    assert max(errors(open_model(MODEL), path, (60, 20), **rounding)) <= most
