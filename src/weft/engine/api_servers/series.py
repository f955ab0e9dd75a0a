"""The series of several processes as one page: sums, but for what each process says of itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from weft.engine.api_servers.messages import Family

# Of Python and the operating system: these are told apart by the label `process`.
_OWN = ("process_", "python_")
SUPERVISOR = "supervisor"

_Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels


def families_of(registry: CollectorRegistry) -> list[Family]:
    """What a registry has now."""
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
    """One list of families for all processes."""
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
                else:  # when a series began is the earliest time, and no sum
                    of_family[key] = min(before, value) if _is_time(name) else before + value
    return [
        Family(head.name, head.text, head.kind, _samples(values[head.name]))
        for head in heads.values()
    ]


def is_own(family: Family) -> bool:
    """Whether it is about a process, and not about what all do together."""
    return family.name.startswith(_OWN)


def page(families: Iterable[Family]) -> bytes:
    """The body of `/metrics`."""
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
        """Called by the exposition."""
        return self.metrics


def _is_time(name: str) -> bool:
    return name.endswith("_created")


def _samples(values: Mapping[_Key, float]) -> list[tuple[str, dict[str, str], float]]:
    return [(name, dict(labels), value) for (name, labels), value in values.items()]
