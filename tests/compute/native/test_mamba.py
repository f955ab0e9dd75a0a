"""Mamba-2 layers of the core: the same bits as numpy on every path, and about the answers of whole models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import errors
from tests.compute.native.recurrent import check_rows, native_rows
from tests.compute.test_mamba import make_layer
from weft.compute.native import usable_paths
from weft.model.open import open_model
from weft.model.recurrence import Mamba1Spec, Mamba2Spec

MODEL = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&vocab=320&mamba=8"


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
def test_rows_and_states_are_the_twin_s(
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
    check_rows(path, make_layer(spec, seed), seed, num_threads)


@pytest.mark.parametrize("path", usable_paths())
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    inner_size=st.sampled_from([1, 5, 24, 32, 96]),
    state_dim=st.sampled_from([1, 7, 16]),
    step_rank=st.sampled_from([1, 6, 16, 33]),
    conv_width=st.integers(2, 5),
    has_conv_bias=st.booleans(),
    has_norms=st.booleans(),
    num_threads=st.integers(1, 3),
)
def test_rows_and_states_of_the_first_mamba_are_the_twin_s(
    path, seed, num_threads, has_norms, **sizes
):
    """Bit for bit too: time steps, B and C are made of convolved rows, each channel with its own."""
    spec = Mamba1Spec(**sizes, has_norms=has_norms, step_eps=1e-6 * has_norms)
    check_rows(path, make_layer(spec, seed), seed, num_threads)


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
