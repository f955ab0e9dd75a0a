"""`Rows`: a gauge whose labels come and go, filled in whole before somebody reads it."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import Gauge

_Labels = TypeVar("_Labels", bound=tuple[str, ...])


class Rows:
    """The label sets of a gauge that one writer owns; other writers keep theirs."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[tuple[str, ...], Gauge] = {}

    def show(self, values: Mapping[_Labels, float]) -> None:
        """These, and no others of before."""
        for labels in self._shown.keys() - values.keys():
            self._gauge.remove(*labels)
            del self._shown[labels]
        for labels, value in values.items():
            if (
                labels not in self._shown
            ):  # finding one again takes five times as long as setting it
                self._shown[labels] = self._gauge.labels(*labels)
            self._shown[labels].set(value)
