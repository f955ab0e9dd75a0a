"""Merges the metric series of several processes into one page: sums, except series about a process itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from weft.engine.api_servers.messages import Family

# Name prefixes of series about the Python process and its use of the system, and of those about a file that all
# processes share. The label `process` has the process.
_OWN = ("process_", "python_", "weft:store_objects", "weft:store_bytes", "weft:store_batches")
SUPERVISOR = "supervisor"

_Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels


def families_of(registry: CollectorRegistry) -> list[Family]:
    """Returns the current metric series of a registry."""
    return [
        Family(
            family.name,
            family.documentation,
            family.type,
            [(sample.name, dict(sample.labels), sample.value) for sample in family.samples],
        )
        for family in registry.collect()
    ]


def summed(families_by_process: Mapping[str, Iterable[Family]]) -> list[Family]:
    """Returns the metric families of all processes in one list, with the samples summed over the processes."""
    values: dict[str, dict[_Key, float]] = {}
    heads: dict[str, Family] = {}
    for process, families in families_by_process.items():
        for family in families:
            heads.setdefault(family.name, family)
            of_family = values.setdefault(family.name, {})
            own = {"process": process} if is_own(family) else {}
            for name, labels, value in family.samples:
                key = (name, tuple({**labels, **own}.items()))
                before = of_family.get(key)
                if before is None:
                    of_family[key] = value
                else:  # creation times are not summed: the earliest one is used
                    of_family[key] = min(before, value) if _is_time(name) else before + value
    return [
        Family(head.name, head.text, head.kind, _samples(values[head.name]))
        for head in heads.values()
    ]


def is_own(family: Family) -> bool:
    """True if the metric family is about a single process, so that it is not summed over processes."""
    return family.name.startswith(_OWN)


def page(families: Iterable[Family]) -> bytes:
    """Returns the body of `/metrics` for these metric families."""
    metrics = []
    for family in families:
        metric = Metric(family.name, family.text, family.kind)
        for name, labels, value in family.samples:
            metric.add_sample(name, labels, value)
        metrics.append(metric)
    return generate_latest(_Collected(metrics))


@dataclass(frozen=True)
class _Collected:
    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        """Returns the collected families; `generate_latest` calls this method."""
        return self.metrics


def _is_time(name: str) -> bool:
    return name.endswith("_created")


def _samples(values: Mapping[_Key, float]) -> list[tuple[str, dict[str, str], float]]:
    return [(name, dict(labels), value) for (name, labels), value in values.items()]
