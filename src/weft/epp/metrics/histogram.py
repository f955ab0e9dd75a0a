"""A histogram for one event loop: no lock, and a bucket found by bisection.

The client library's takes a lock twice and walks the buckets; a decision observes a dozen times.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Cells:
    """The buckets of one set of label values."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one: beyond all bounds
        self.total = 0.0

    def observe(self, amount: float) -> None:
        """Add one."""
        self.counts[bisect_left(self._bounds, amount)] += 1
        self.total += amount


class Histogram(Collector):
    """Cells by label values; one without labels is its own cells."""

    def __init__(
        self, name: str, text: str, labels: Iterable[str], bounds: Iterable[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._written = [*map(floatToGoString, self._bounds), "+Inf"]
        self._cells: dict[tuple[str, ...], Cells] = {}
        if not self._labels:
            self.observe = self.labels().observe

    def labels(self, *values: str) -> Cells:
        """The cells of these label values."""
        found = self._cells.get(values)
        if found is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {values}")
            found = self._cells[values] = Cells(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What the client library writes out."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, cells in self._cells.items():
            buckets = zip(self._written, accumulate(cells.counts), strict=True)
            family.add_metric(values, buckets=list(buckets), sum_value=cells.total)
        yield family
