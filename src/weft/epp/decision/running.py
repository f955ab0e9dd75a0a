"""An estimate of the running requests of each set of labels, for pickers that do not follow responses."""

import math
from typing import Final

from prometheus_client import Gauge

from weft.epp.metrics.rows import Rows

_Labels = tuple[str, str, str, str]
_WINDOW_S: Final = 60.0
_KEEP_S: Final = 600.0


class RunningEstimate:
    """Distributes the number of requests that endpoints report over the labels of recent requests."""

    def __init__(self, gauge: Gauge) -> None:
        self._rows = Rows(gauge)
        # Weight, and the time of the latest request
        self._recent: dict[_Labels, tuple[float, float]] = {}

    def sent(self, labels: _Labels, now: float) -> None:
        """A request was sent on."""
        self._recent[labels] = self._weight(labels, now) + 1.0, now

    def show(self, num_running: int, now: float) -> None:
        """Updates the gauge, as endpoints have reported `num_running` requests."""
        newest = max((at for _, at in self._recent.values()), default=now)
        self._recent = {
            labels: (weight, at)
            for labels, (weight, at) in self._recent.items()
            if newest - at <= _KEEP_S
        }
        weights = {labels: self._weight(labels, newest) for labels in self._recent}
        total = sum(weights.values())
        self._rows.show({labels: num_running * w / total for labels, w in weights.items()})

    def _weight(self, labels: _Labels, now: float) -> float:
        weight, at = self._recent.get(labels, (0.0, now))
        return weight * math.exp(-(now - at) / _WINDOW_S)
