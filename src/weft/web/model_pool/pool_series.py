"""The series of a pool: the state of each model, its memory, its starts, and the requests that wait for it."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.core.observe.metric_series import MAX_LABEL_CHARS
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pooled_model import ModelState, PooledModel

NAME = "weft:model"
LABEL = "model_name"
STATES = ("state", "State of the model: 1 for the current state, 0 for the others.")
# Name, meaning, and the attribute of the model that has the value.
GAUGES = (
    (
        "memory_bytes",
        "Bytes of memory that are used by the model or reserved for it.",
        "reserved_bytes",
    ),
    ("requests", "Number of requests that use the model.", "num_users"),
    ("requests_waiting", "Number of requests that wait for the model to load.", "num_waiters"),
    ("load_seconds", "Seconds that the last start took, including the wait for memory.", "load_s"),
)
COUNTERS = (
    ("loads", "Number of starts of the model.", "num_loads"),
    (
        "failures",
        "Number of failed starts, and of engines that ended unexpectedly.",
        "num_failures",
    ),
)


class PoolSeries:
    """Collects the series of a pool, for the registry of its server."""

    def __init__(self, pool: ModelPool, registry: CollectorRegistry) -> None:
        self._pool = pool
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields every family."""
        yield self._states()
        for name, text, value in GAUGES:
            yield self._filled(GaugeMetricFamily(f"{NAME}_{name}", text, labels=(LABEL,)), value)
        for name, text, value in COUNTERS:
            yield self._filled(CounterMetricFamily(f"{NAME}_{name}", text, labels=(LABEL,)), value)

    def _states(self) -> Metric:
        name, text = STATES
        family = GaugeMetricFamily(f"{NAME}_{name}", text, labels=(LABEL, name))
        for entry in self._pool.entries:
            for state in ModelState:
                family.add_metric((_label(entry), state.value), float(entry.state is state))
        return family

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, value: str) -> Metric:
        for entry in self._pool.entries:
            family.add_metric((_label(entry),), float(getattr(entry, value)))
        return family


def _label(entry: PooledModel) -> str:
    return entry.name[:MAX_LABEL_CHARS]
