"""Gated delta nets of the core: the same bits as numpy on every path, and about the answers of whole models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import errors
from tests.compute.native.recurrent import check_rows, native_rows
from tests.compute.test_delta import make_layer
from tests.model.checkpoints import write_checkpoint
from tests.model.test_delta import NEXT, QWEN35
from weft.compute.native import usable_paths
from weft.model.open import open_model
from weft.model.recurrence import DeltaSpec

MODEL = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&vocab=320&delta=8"


@pytest.mark.parametrize("path", usable_paths())
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    key_size=st.sampled_from([1, 7, 16, 33, 128]),
    value_size=st.sampled_from([1, 5, 16, 31, 32, 33, 64]),
    conv_width=st.integers(2, 5),
    num_threads=st.integers(1, 3),
)
def test_rows_and_states_are_the_twin_s(
    path, seed, num_key_heads, group, key_size, value_size, conv_width, num_threads
):
    """Bit for bit, for any size, from zeros and from a state."""
    spec = DeltaSpec(
        num_key_heads=num_key_heads,
        num_value_heads=num_key_heads * group,
        key_size=key_size,
        value_size=value_size,
        conv_width=conv_width,
        is_by_key_head=False,
    )
    check_rows(path, make_layer(spec, seed), seed, num_threads)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38])
def test_what_is_no_number_is_none_in_both(path, value):
    """From that row on, and where numpy has a number the core has the same one."""
    layer = make_layer()
    width = sum(layer.spec.products.values())
    rows = np.random.default_rng(1).standard_normal((9, width)).astype(np.float32)
    rows[4] = value
    with np.errstate(all="ignore"):
        expected = layer(rows, np.zeros(layer.spec.state_size, np.float32))
    got = native_rows(path, layer, rows, np.zeros(layer.spec.state_size, np.float32), False)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.isfinite(got[:4]).all()


def test_sizes_that_do_not_fit_are_refused():
    """Rows that are too narrow, a state that is too small, and another layer's vectors."""
    layer = make_layer()
    rows = np.zeros((3, sum(layer.spec.products.values())), np.float32)
    state = np.zeros(layer.spec.state_size, np.float32)
    for case in (
        (layer, rows[:, 1:].copy(), state),
        (layer, rows, state[1:].copy()),
        (replace(layer, output_scale=layer.output_scale[1:].copy()), rows, state),
    ):
        with pytest.raises(ValueError, match="must have the sizes of the layer"):
            native_rows("portable", *case, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_value_heads": 5}, "num_value_heads must be a multiple of num_key_heads"),
        ({"num_key_heads": 0}, "must be from 1 to"),
        ({"conv_width": 65}, "conv_width must be from 2 to 64"),
        ({"key_size": 2**13, "value_size": 2**13}, "a head's state must be small enough"),
        ({"num_value_heads": 2**13, "value_size": 2**13}, "small enough for 2\\^24 columns"),
    ],
)
def test_sizes_that_no_layer_has_are_refused(changes, message):
    """Before any memory is taken for them."""
    layer = make_layer()
    with pytest.raises(ValueError, match=message):
        native_rows(
            "portable",
            replace(layer, spec=replace(layer.spec, **changes)),
            np.zeros((1, 1), np.float32),
            np.zeros(1, np.float32),
            False,
        )


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize(("quantization", "most"), [(None, 1e-5), ("int8", 0.02), ("int4", 0.02)])
def test_a_model_computes_what_the_reference_computes(path, quantization, most):
    """Around linear layers as they are, and as they are rounded."""
    rounding = {} if quantization is None else {"quantization": quantization}
    assert max(errors(open_model(MODEL), path, (60, 20), **rounding)) <= most


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("config", [NEXT, QWEN35], ids=["by key head", "in order"])
def test_matrices_of_a_file_lie_as_the_reference_reads_them(config, quantization, tmp_path):
    """Key head by key head, or all of one kind first; with gates beside queries, and without."""
    rounding = {} if quantization is None else {"quantization": quantization}
    for number, gates in enumerate((True, False)):
        changed = {**config, "attn_output_gate": gates, "head_dim": 10}
        name = str(write_checkpoint(tmp_path / str(number), changed))
        assert max(errors(open_model(name), usable_paths()[0], (60, 20), **rounding)) <= 0.02
