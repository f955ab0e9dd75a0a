"""Result of `LLM.get_metrics`: the metric series of `/metrics` as Python objects with vLLM's class names."""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric series."""

    name: str
    labels: dict[str, str]


class Counter(Metric, frozen=True, kw_only=True):
    """A metric series whose value only grows."""

    value: int


class Gauge(Metric, frozen=True, kw_only=True):
    """A metric series whose value goes up and down."""

    value: float


class Histogram(Metric, frozen=True, kw_only=True):
    """A histogram: each of `buckets` counts the observations up to its limit; "+Inf" counts all observations."""

    count: int
    sum: float
    buckets: dict[str, int]


def read_metrics(families: Iterable[Family]) -> list[Metric]:
    """Returns the counters, gauges and histograms of the metric families."""
    return [metric for family in families for metric in _read(family)]


def _read(family: Family) -> Iterator[Metric]:
    if family.type == "histogram":
        yield from _histograms(family)
    for sample in family.samples:
        if family.type == "counter" and sample.name.endswith("_total"):
            yield Counter(name=family.name, labels=sample.labels, value=int(sample.value))
        elif family.type == "gauge":
            yield Gauge(name=family.name, labels=sample.labels, value=sample.value)


def _histograms(family: Family) -> Iterator[Histogram]:
    samples_by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        samples_by_labels.setdefault(labels, []).append(sample)
    for labels, samples in samples_by_labels.items():
        buckets = {s.labels["le"]: int(s.value) for s in samples if "le" in s.labels}
        total = next(s.value for s in samples if s.name.endswith("_sum"))
        yield Histogram(
            name=family.name,
            labels=dict(labels),
            count=buckets["+Inf"],
            sum=total,
            buckets=buckets,
        )
