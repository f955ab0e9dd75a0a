"""`Rows`: writes changing label values of a gauge; all of them are replaced before the gauge is read."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import Gauge

_Labels = TypeVar("_Labels", bound=tuple[str, ...])


class Rows:
    """The label values of a gauge that one writer owns. Label values of other writers stay."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[tuple[str, ...], Gauge] = {}

    def show(self, values: Mapping[_Labels, float]) -> None:
        """Replaces the writer's label values and their numbers by `values`."""
        for labels in self._shown.keys() - values.keys():
            self._gauge.remove(*labels)
            del self._shown[labels]
        for labels, value in values.items():
            if (
                labels not in self._shown
            ):  # looking up a series takes five times as long as setting its value
                self._shown[labels] = self._gauge.labels(*labels)
            self._shown[labels].set(value)
