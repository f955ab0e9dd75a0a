"""Weights in groups: the same bits as numpy on every path, and about the answers of the weights as they were."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import errors
from tests.compute.native.test_int8 import SHAPE, divergence
from weft.compute.arithmetic.grouped import multiply
from weft.compute.native import _core, resident_bytes, usable_paths
from weft.compute.native.groups import round_to_groups
from weft.model.groups import ROUNDED, GroupedMatrix, GroupFormat
from weft.model.open import open_model
from weft.model.weights import Tensor

FORMATS = [
    GroupFormat(bits, size, offset, scales)
    for bits, size, offset, scales in product(
        (4, 8),
        (16, 32, 64, 128, None),
        ("symmetric", "zeros", "minimums"),
        ("float32", "bfloat16", "float16"),
    )
    if (bits, size) != (8, None)
] + [
    GroupFormat(4, size, "e2m1", scales)
    for size, scales in product((16, 32, 64, 128, None), ("float32", "bfloat16", "float16"))
]


def draw_matrix(rng, form, rows, depth, spread=1.0):
    """Any numbers of that format."""
    shape = (rows, form.count(depth))

    def values():
        wide = (rng.standard_normal(shape) * spread).astype(np.float32)
        return Tensor("float32", wide).rounded_to(form.scales).data

    offsets = None
    if form.offset == "zeros":
        offsets = rng.integers(0, 2**form.bits + 1, shape).astype(np.int16)
    if form.offset == "minimums":
        offsets = values()
    numbers = rng.integers(0, 2**form.bits, (rows, depth)).astype(np.uint8)
    return GroupedMatrix(form, numbers, values(), offsets)


def native_format(form):
    return _core.GroupFormat(form.bits, form.size or 0, form.offset, form.scales)


def native_product(path, rows, matrix):
    out = np.full((len(rows), len(matrix.numbers)), np.nan, np.float32)
    _core.multiply_grouped(
        path, native_format(matrix.format), rows, matrix.numbers, matrix.scales, matrix.offsets, out
    )
    return out


@pytest.mark.parametrize("path", usable_paths())
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from(FORMATS),
    num_rows=st.sampled_from([1, 2, 3, 5, 12, 13, 25, 97, 130]),
    num_columns=st.integers(1, 140),
    depth=st.sampled_from([1, 15, 16, 17, 33, 64, 255, 600]),
    spread=st.sampled_from([1e-33, 1e-6, 1.0, 1e15]),
)
def test_a_product_is_the_twin_s(path, seed, form, num_rows, num_columns, depth, spread):
    """Bit for bit, for any format and size: sums are whole numbers, and floats are added in one order."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((num_rows, depth)) * spread).astype(np.float32)
    matrix = draw_matrix(rng, form, num_columns, depth, 1.0 if spread > 1 else spread + 1e-4)
    assert native_product(path, rows, matrix).tobytes() == multiply(rows, matrix).tobytes()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_product_is_near_that_of_the_values(form):
    """The twin is held to what the format means."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((7, 300)).astype(np.float32)
    matrix = draw_matrix(rng, form, 40, 300)
    expected = rows.astype(np.float64) @ matrix.float32().astype(np.float64).T
    assert np.linalg.norm(multiply(rows, matrix) - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("path", usable_paths())
def test_the_largest_sums_do_not_overflow(path):
    """A row of four bits that is one group, as deep as a layer can be, every number at its most."""
    depth = 1 << 17
    form = GroupFormat(4, None, "zeros", "float32")
    matrix = GroupedMatrix(
        form,
        np.full((33, depth), 15, np.uint8),
        np.ones((33, 1), np.float32),
        np.zeros((33, 1), np.int16),
    )
    rows = np.full((2, depth), -1, np.float32)
    got = native_product(path, rows, matrix)
    assert got.tobytes() == multiply(rows, matrix).tobytes()
    assert np.allclose(got, -15 * depth, rtol=1e-6)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(path, value):
    """The row that holds it becomes NaN; the others keep their bits."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((15, 90)).astype(np.float32)
    matrix = draw_matrix(rng, ROUNDED, 50, 90)
    whole = native_product(path, rows, matrix)
    rows[4, 77] = value
    got = native_product(path, rows, matrix)
    assert np.isnan(got[4]).all()
    assert np.delete(got, 4, 0).tobytes() == np.delete(whole, 4, 0).tobytes()


def damaged(field, value):
    matrix = draw_matrix(np.random.default_rng(1), ROUNDED, 8, 64)
    parts = {"numbers": matrix.numbers, "scales": matrix.scales, "offsets": matrix.offsets}
    return {**parts, field: value(parts[field])}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (damaged("scales", lambda a: a[:, :1].copy()), "a row for each"),
        (damaged("scales", lambda a: a[:7].copy()), "a row for each"),
        (damaged("scales", lambda a: a.astype(np.float32)), "scales of the type"),
        (damaged("offsets", lambda a: a[:, :1].copy()), "a row for each"),
        (damaged("offsets", lambda a: a.astype(np.float32)), "offsets of the type"),
        (damaged("offsets", lambda _: None), "have offsets"),
        (damaged("numbers", lambda a: a + 1), "numbers of four bits"),
        (damaged("numbers", lambda a: a[:, :32].copy()), "wide"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, words):
    """Nothing is read or written out of bounds."""
    rows, out = np.ones((2, 64), np.float32), np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match=words):
        _core.multiply_grouped("portable", native_format(ROUNDED), rows, *parts.values(), out)


@pytest.mark.parametrize(
    ("bits", "size", "words"),
    [(5, 32, "bits"), (4, 48, "group"), (8, 0, "group"), (4, -1, "group")],
)
def test_a_format_that_no_kernel_has_is_refused(bits, size, words):
    """Whatever its parts are."""
    form = _core.GroupFormat(bits, size, "symmetric", "float32")
    numbers, scales = np.zeros((1, 64), np.uint8), np.ones((1, 2), np.float32)
    rows, out = np.ones((1, 64), np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match=words):
        _core.multiply_grouped("portable", form, rows, numbers, scales, None, out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_floats_stay_near(dtype):
    """Relative L2 of normal numbers; a row of zeros stays one, and a short last group is no worse."""
    values = np.random.default_rng(4).standard_normal((40, 300)).astype(np.float32)
    values[3] = 0
    matrix = round_to_groups(Tensor("float32", values).rounded_to(dtype))
    got = matrix.float32()
    assert np.linalg.norm(got - values) < 0.08 * np.linalg.norm(values)
    assert np.linalg.norm((got - values)[:, 288:]) < 0.08 * np.linalg.norm(values[:, 288:])
    assert not got[3].any()


def test_rounded_floats_that_are_no_numbers_are_seen():
    """By their scales, since numbers are always some."""
    values = np.ones((4, 64), np.float32)
    assert round_to_groups(Tensor("float32", values)).is_finite()
    values[2, 40] = np.inf
    assert not round_to_groups(Tensor("float32", values)).is_finite()


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize(
    "query",
    [
        f"&head_dim={rest}"
        for rest in ("14", "16", "14&conv=3", "14&mamba=8", "14&delta=4", "16&delta=4")
    ],
)
def test_a_model_computes_what_the_reference_computes(path, query):
    """Heads that are padded leave one matrix in int8, heads that are not do not."""
    checkpoint = open_model(SHAPE.replace("&head_dim=14", query))
    assert errors(checkpoint, path, quantization="int4")[0] <= 0.01


def test_the_answers_of_a_trained_model_stay_near():
    """All of embedded:tiny in int4, its head in int8: probabilities move by little."""
    assert 0 < divergence("int4") < 0.2


def test_the_card_has_what_int4_takes():
    """Five bits a weight, the head in int8, the embedding as it was."""
    spec = open_model(SHAPE.replace("&head_dim=14", "&head_dim=16"), dtype="bfloat16").spec
    whole = resident_bytes(spec, "bfloat16").weights
    rounded = resident_bytes(spec, "bfloat16", "int4").weights
    embedding, head = spec.vocab_size * spec.hidden_size * 2, 96 * 320
    matrices = (whole - embedding) // 2 - head
    assert embedding + head + 0.625 * matrices < rounded < embedding + 1.2 * head + 0.7 * matrices
