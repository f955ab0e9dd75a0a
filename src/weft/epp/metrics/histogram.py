"""Histograms with labels for use on one event loop. Each set of label values has its own `Tally`, because each decision
makes a dozen observations.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from weft.core.observe.tally import Tally


class Cells(Tally):
    """The buckets of one set of label values, with the interface of the Prometheus client library."""

    __slots__ = ()
    observe = Tally.add


class Histogram(Collector):
    """A histogram: its cells by label values. A histogram without labels has one set of cells."""

    def __init__(
        self, name: str, text: str, labels: Iterable[str], bounds: Iterable[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._cells: dict[tuple[str, ...], Cells] = {}
        if not self._labels:
            self.observe = self.labels().observe

    def labels(self, *values: str) -> Cells:
        """Returns the cells of these label values."""
        found = self._cells.get(values)
        if found is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {values}")
            found = self._cells[values] = Cells(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields the metric family for the Prometheus client library."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, cells in list(self._cells.items()):  # another thread may add entries meanwhile
            family.add_metric(values, buckets=cells.buckets(), sum_value=cells.sum)
        yield family
