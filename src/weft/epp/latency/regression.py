"""`LeastSquares`: a linear model that learns from one sample at a time and forgets old ones."""

import math
from collections.abc import Sequence
from operator import mul
from typing import Final

# Factor on the weight of old samples with each new sample: about a hundred samples count.
_FORGETTING: Final = 0.99
# Initial variance of the weights. It is largest for the constant, so that a feature that no sample has varied yet
# keeps a weight near 0. Features and targets have magnitudes around 1.
_CONSTANT_VARIANCE: Final = 100.0
_VARIANCE: Final = 1.0
# Limit of the trace: without it, the variance of a feature that stays 0 would grow, and the next sample with this
# feature would have too much influence.
_MAX_TRACE: Final = 1000.0


class LeastSquares:
    """Recursive least squares with exponential forgetting.

    The first feature is the constant 1. All inputs must be finite.
    """

    def __init__(self, num_features: int) -> None:
        self._num_features = num_features
        self._weights: list[float] = []
        self._covariance: list[list[float]] = []
        self._reset()

    def predict(self, features: Sequence[float]) -> float:
        """The predicted target."""
        return _dot(self._weights, features)

    def learn(self, features: Sequence[float], target: float) -> None:
        """Updates the weights with a sample."""
        spread = [_dot(row, features) for row in self._covariance]
        certainty = _FORGETTING + _dot(spread, features)
        error = (target - _dot(self._weights, features)) / certainty
        self._weights = [
            weight + value * error for weight, value in zip(self._weights, spread, strict=True)
        ]
        trace = sum(row[i] for i, row in enumerate(self._covariance))
        keep = _FORGETTING if trace < _MAX_TRACE else 1.0
        self._covariance = [
            [
                (each - value * other / certainty) / keep
                for each, other in zip(row, spread, strict=True)
            ]
            for row, value in zip(self._covariance, spread, strict=True)
        ]
        if certainty <= 0.0 or not all(map(math.isfinite, self._weights)):
            self._reset()  # rounding errors made the matrix invalid

    def _reset(self) -> None:
        n = self._num_features
        self._weights = [0.0] * n
        self._covariance = [[_VARIANCE if i == j else 0.0 for j in range(n)] for i in range(n)]
        self._covariance[0][0] = _CONSTANT_VARIANCE


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))
