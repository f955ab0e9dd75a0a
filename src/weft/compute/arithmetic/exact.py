"""exp and related functions, and sums, rounded after each operation: the same bits as `cpp/kernels/exact.h`.

A sum adds its terms in order, or in sixteen partial sums that are added at the end.
"""

import numpy as np

from weft.compute.protocols.runner import FloatArray

_LOW, _HIGH = np.float32(-87.33), np.float32(88.37)  # outside this range exp is not a normal number
_LOG2E = np.float32(1.44269504)
# ln 2 in two parts, so that a whole number of the first is exact.
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Adding this number rounds the sum to a whole number, which is then in the lowest bits of the sum.
_WHOLE = np.float32(12582912.0)
_EXP = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
_LANES = 16
_NUM_TERMS = 12  # for an argument of at most 1/9: later terms are below the precision of a double


def exp(x: FloatArray) -> FloatArray:
    """Returns e^x within 2 units in the last place; saturates where the result would not be a normal number."""
    x = np.where(x < _LOW, _LOW, x)
    x = np.where(x > _HIGH, _HIGH, x)
    shifted = x * _LOG2E + _WHOLE
    whole = shifted - _WHOLE
    rest = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    value = np.full_like(rest, _EXP[0])
    for coefficient in _EXP[1:]:
        value = value * rest + np.float32(coefficient)
    value = (value * (rest * rest) + rest) + np.float32(1)
    power = (shifted.view(np.uint32) + np.uint32(127)) << np.uint32(23)
    result: FloatArray = value * power.view(np.float32)
    return result


def sigmoid(x: FloatArray) -> FloatArray:
    """Returns the logistic function of each element."""
    result: FloatArray = np.float32(1) / (np.float32(1) + exp(-x))
    return result


def silu(x: FloatArray) -> FloatArray:
    """Returns x times its logistic function."""
    result: FloatArray = x / (np.float32(1) + exp(-x))
    return result


def softplus(x: FloatArray) -> FloatArray:
    """Returns log(1 + e^x); the logarithm is a series in double precision."""
    raised = exp(np.where(x < 0, x, -x)).astype(np.float64)
    part = raised / (2.0 + raised)
    square = part * part
    series = np.full_like(square, 1.0 / (2 * _NUM_TERMS + 1))
    for term in reversed(range(_NUM_TERMS)):
        series = series * square + 1.0 / (2 * term + 1)
    whole = np.where(x > 0, x, np.float32(0)).astype(np.float64)
    return (whole + 2.0 * part * series).astype(np.float32)


def add_up(terms: FloatArray, axis: int) -> FloatArray:
    """Returns the sum of the terms along `axis`, added one after the other, starting from zero."""
    total: FloatArray = np.float32(0) + np.add.accumulate(terms, axis=axis).take(-1, axis=axis)
    return total


def sum_of_squares(rows: FloatArray) -> FloatArray:
    """Returns the sums of squares over the last axis of [..., n], as [..., 1]; added in sixteen partial sums."""
    return _add_in_lanes(rows * rows)[..., None]


def dots(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Returns the products of `rows` [n, size] with `weights` [m, size], as [n, m]; added like `sum_of_squares`."""
    given = np.empty((len(rows), len(weights)), np.float32)
    for index, row in enumerate(rows):
        given[index] = _add_in_lanes(row * weights)
    return given


def _add_in_lanes(terms: FloatArray) -> FloatArray:
    """Returns the sums over the last axis of [..., n]: of every sixteenth term, and then of these."""
    size = terms.shape[-1]
    spare = (*((0, 0),) * (terms.ndim - 1), (0, -size % _LANES))
    lanes = np.pad(terms, spare).reshape(*terms.shape[:-1], -1, _LANES)
    return add_up(add_up(lanes, -2), -1)
