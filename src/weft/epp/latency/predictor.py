"""`Predictor`: predicts one kind of latency for every endpoint. It learns from the endpoint's responses and, while
these are few, from the responses of all endpoints.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Final

from weft.epp.latency.regression import LeastSquares

# Predictions are upper bounds for nine of ten responses: with predicted means, half of the responses would miss their
# SLO.
QUANTILE: Final = 0.9
# An endpoint with fewer samples of its own uses the model of all endpoints.
MIN_SAMPLES: Final = 12
# A longer time means that the clock was set or the response hung: such a sample is not learned.
MAX_SECONDS: Final = 3600.0
_MIN_SECONDS: Final = 1e-6
# Minimum weight of one response in the margin; the first responses have a larger weight.
_MARGIN_STEP: Final = 0.05
_MAX_LOG_MARGIN: Final = math.log(8.0)
_LOG_RANGE: Final = (math.log(_MIN_SECONDS), math.log(MAX_SECONDS))


class LatencyModel:
    """Model of a latency at one endpoint: a least-squares fit of its logarithm, and a margin that covers nine of ten
    responses.

    The logarithm is used because relative errors matter and times are positive (docs/decisions/0035 has the numbers).
    """

    def __init__(self, num_features: int) -> None:
        self._line = LeastSquares(num_features)
        self._log_margin = 0.0
        self.num_samples = 0

    def expected(self, features: Sequence[float]) -> float:
        """Returns the expected seconds."""
        least, most = _LOG_RANGE
        return math.exp(min(max(self._line.predict(features), least), most))

    def predict(self, features: Sequence[float]) -> float:
        """Returns the seconds within which nine of ten responses stay."""
        return self.expected(features) * math.exp(self._log_margin)

    def learn(self, features: Sequence[float], seconds: float) -> None:
        """Updates the model with a measured latency."""
        self.num_samples += 1
        if self.num_samples > 1:  # the first prediction had no samples to rely on
            step = max(_MARGIN_STEP, 1 / self.num_samples)
            is_over = seconds > self.predict(features)
            moved = self._log_margin + step * (QUANTILE - (not is_over))
            self._log_margin = min(max(moved, -_MAX_LOG_MARGIN), _MAX_LOG_MARGIN)
        self._line.learn(features, math.log(seconds))


class Predictor:
    """Predicts a latency with a model for each endpoint. For an endpoint with too few samples, a model of all endpoints
    of its role is used.
    """

    def __init__(self, num_features: int) -> None:
        self._num_features = num_features
        self._own: dict[Hashable, LatencyModel] = {}
        self._of_role: dict[str, LatencyModel] = {}

    def predict(self, endpoint: Hashable, role: str, features: Sequence[float]) -> float | None:
        """Returns the predicted seconds; None while even the role has too few samples."""
        for model in (self._own.get(endpoint), self._of_role.get(role)):
            if model is not None and model.num_samples >= MIN_SAMPLES:
                return model.predict(features)
        return None

    def learn(
        self, endpoint: Hashable, role: str, features: Sequence[float], seconds: float
    ) -> None:
        """Updates the models with a measured latency of the endpoint. Invalid times are ignored."""
        if not _MIN_SECONDS <= seconds <= MAX_SECONDS:  # also excludes NaN
            return
        if endpoint not in self._own:
            self._own[endpoint] = LatencyModel(self._num_features)
        if role not in self._of_role:
            self._of_role[role] = LatencyModel(self._num_features)
        self._own[endpoint].learn(features, seconds)
        self._of_role[role].learn(features, seconds)

    def num_samples(self, endpoint: Hashable) -> int:
        """Returns the number of the endpoint's responses that its model has learned from."""
        model = self._own.get(endpoint)
        return 0 if model is None else model.num_samples

    def forget(self, endpoint: Hashable) -> None:
        """Removes an endpoint that left the pool."""
        self._own.pop(endpoint, None)

    def forget_role(self, role: str) -> None:
        """Drops the model of a role whose last endpoint has left."""
        self._of_role.pop(role, None)
