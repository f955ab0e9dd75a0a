"""Activations between the two linear layers of an MLP, in float32 numpy."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from weft.compute.protocols.runner import FloatArray
from weft.model.switches import Activation

_CHUNK = 1 << 16  # elements per pass, so that a dozen arrays stay in the cache
# erf(x) = x P(x²) / Q(x²), a least-squares fit on [0, 3.92]; beyond, erf is 1 in float32. The error is
# at most 4e-7, highest power first.
_ERF_END = np.float32(3.92)
_ERF_ABOVE = (2.03474161e-06, 0.000287477558, 0.00386826398, 0.0530602906, 0.192762631, 1.12837902)
_ERF_BELOW = (3.8070612e-05, 0.00118809886, 0.0151721718, 0.115084027, 0.504163102, 1.0)


def activate(activation: Activation, x: FloatArray) -> FloatArray:
    """Returns the activation of each element; the result may share memory with `x`."""
    match activation:
        case Activation.GELU:
            return _gelu(x)
        case Activation.GELU_TANH:
            inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
            rising: FloatArray = np.tanh(inner)
            return np.float32(0.5) * x * (1 + rising)
        case Activation.RELU_SQUARED:
            return np.square(np.maximum(x, 0))
        case Activation.RELU:
            positive: FloatArray = np.maximum(x, 0)
            return positive
        case Activation.SILU:
            falling: FloatArray = np.exp(-x)
            return x / (1 + falling)
        case Activation.TANH:
            bounded: FloatArray = np.tanh(x)
            return bounded
        case Activation.XIELU:
            raise AssertionError("xIELU has numbers of its own in each layer: see `Xielu`")
        case _:
            assert_never(activation)


@dataclass(frozen=True, slots=True)
class Xielu:
    """The activation xIELU with the learned numbers of a layer.

    It is `positive` x² + `linear` x for positive x, and `negative` (exp(x) - 1 - x) + `linear` x for others.
    """

    positive: np.float32
    negative: np.float32
    linear: np.float32

    @classmethod
    def of(cls, positive: FloatArray, negative: FloatArray, linear: FloatArray) -> "Xielu":
        """Returns the activation of a checkpoint's numbers, each in an array of one."""
        above, below = np.log1p(np.exp(positive)), np.log1p(np.exp(negative))
        return cls(above[0], linear[0] + below[0], linear[0])

    def __call__(self, x: FloatArray) -> FloatArray:
        """Returns the activation of each element."""
        above, below = np.maximum(x, 0), np.minimum(x, 0)
        curve: FloatArray = (np.expm1(below) - below) * self.negative
        return above * above * self.positive + curve + x * self.linear


def sigmoid(x: FloatArray) -> FloatArray:
    """Returns the logistic function of each element."""
    falling: FloatArray = np.exp(-x)
    return np.float32(1) / (np.float32(1) + falling)


def _gelu(x: FloatArray) -> FloatArray:
    """Returns x Φ(x), with Φ from the error function."""
    result = np.empty(x.shape, np.float32)
    given, out = np.ascontiguousarray(x).reshape(-1), result.reshape(-1)
    for start in range(0, len(given), _CHUNK):
        piece = given[start : start + _CHUNK]
        out[start : start + _CHUNK] = (
            (erf(piece * np.float32(0.5**0.5)) + 1) * piece * np.float32(0.5)
        )
    return result


def erf(x: FloatArray) -> FloatArray:
    """Returns the error function of each element."""
    x = np.clip(x, -_ERF_END, _ERF_END)
    square = x * x
    return x * _polynomial(_ERF_ABOVE, square) / _polynomial(_ERF_BELOW, square)


def _polynomial(coefficients: tuple[float, ...], x: FloatArray) -> FloatArray:
    value = x * np.float32(coefficients[0])
    for coefficient in coefficients[1:-1]:
        value += np.float32(coefficient)
        value *= x
    value += np.float32(coefficients[-1])
    return value
