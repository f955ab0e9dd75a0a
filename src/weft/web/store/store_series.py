"""The series that names a server's store, so that a picker finds the server of an object by its id."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from weft.core.checks.object_ids import STORE_SERIES
from weft.web.store.database import Store

TEXT = "Name of the store, which is part of the ids of stored objects, in a label."


class StoreSeries:
    """Collects the series of a store, for the registry of its server."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yields the only family."""
        name, label = STORE_SERIES
        family = GaugeMetricFamily(name, TEXT, labels=(label,))
        family.add_metric((self._store.name,), 1.0)
        yield family
