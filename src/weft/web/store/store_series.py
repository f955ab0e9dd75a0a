"""The series of a store: its name, numbers and bytes of its objects, and the batches that wait or run.

Pickers find the server of an object by the name, which is part of the object's id.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from weft.core.checks.object_ids import STORE_SERIES
from weft.web.store.database import Store

TEXT = "Name of the store, which is part of the ids of stored objects, in a label."
# Every process that shares a file reports all of it: with several API servers, samples have the label `process`.
PREFIX: Final = "weft:store_"
OBJECTS: Final = ("objects", "kind", "Number of stored objects.")
BYTES: Final = ("bytes", "kind", "Bytes of stored objects, with what their rows add.")
BATCHES: Final = ("batches", "state", "Number of stored batches: waiting, running or ended.")
GAUGES: Final = (OBJECTS, BYTES, BATCHES)


class StoreSeries:
    """Collects the series of a store, for the registry of its server. Figures are those after its last change."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yields every family."""
        name, label = STORE_SERIES
        info = GaugeMetricFamily(name, TEXT, labels=(label,))
        info.add_metric((self._store.name,), 1.0)
        yield info
        figures = self._store.figures
        values = (figures.num_objects, figures.num_bytes, figures.num_batches)
        for (short, label, text), value_by_label in zip(GAUGES, values, strict=True):
            family = GaugeMetricFamily(f"{PREFIX}{short}", text, labels=(label,))
            for key, value in value_by_label.items():
                family.add_metric((key,), float(value))
            yield family
