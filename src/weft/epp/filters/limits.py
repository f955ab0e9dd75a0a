"""Filters by caps on an endpoint's numbers."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Kind, Parameters, Reference, Surroundings
from weft.epp.pool.endpoint import Endpoint
from weft.epp.producers.inflight import TYPE as INFLIGHT
from weft.epp.producers.inflight import InflightLoad, inflight_reference

EXTRACTOR = "core-metrics-extractor"


class Condition(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """A cap on one number."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float


class UtilizationFilterParameters(Parameters, frozen=True, kw_only=True):
    """Caps that must all hold."""

    conditions: list[Condition]
    fallback_on_empty: bool = False

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError("needs at least one condition")

    def references(self) -> Iterable[Reference]:
        """What counts active requests, if that is asked for."""
        if any(condition.metric == "active-requests" for condition in self.conditions):
            yield inflight_reference(INFLIGHT)


class UtilizationFilter:
    """Keeps the endpoints below every cap."""

    def __init__(self, parameters: UtilizationFilterParameters, around: Surroundings) -> None:
        inflight: InflightLoad | None = around.built.get(INFLIGHT)
        readers: Mapping[str, Callable[[Endpoint], float]] = {
            "active-requests": lambda each: inflight.num_requests(each) if inflight else 0,
            "running-requests": lambda each: each.num_running,
            "waiting-queue": lambda each: each.num_waiting,
            "kv-cache-utilization": lambda each: each.load.kv_usage,
        }
        self._caps = [(readers[each.metric], each.max_value) for each in parameters.conditions]
        self._falls_back = parameters.fallback_on_empty

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those below the caps; all if that leaves none and falling back is on."""
        kept = [each for each in candidates if all(read(each) <= cap for read, cap in self._caps)]
        return candidates if not kept and self._falls_back else kept


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison."""

    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    value: float


class ThresholdAlgorithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one way to decide there is."""

    threshold: Threshold
    type: Literal["threshold"] = "threshold"


class AttributeFilterParameters(Parameters, frozen=True, kw_only=True):
    """A custom metric, and what it must be."""

    attribute: str
    algorithm: ThresholdAlgorithm
    producer: str = EXTRACTOR
    on_missing: Literal["Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False

    def references(self) -> Iterable[Reference]:
        """What reads the attribute."""
        yield Reference("producer", self.producer, Kind.EXTRACTOR, EXTRACTOR)


_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class AttributeFilter:
    """Keeps the endpoints whose custom metric compares as wanted."""

    def __init__(self, parameters: AttributeFilterParameters, _: Surroundings) -> None:
        self._key = parameters.attribute
        self._compare = _COMPARE[parameters.algorithm.threshold.operator]
        self._value = parameters.algorithm.threshold.value
        self._passes_missing = parameters.on_missing == "Pass"
        self._falls_back = parameters.fallback_on_empty

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those that compare; all if that leaves none and falling back is on."""
        kept = [each for each in candidates if self._accepts(each.load.attributes.get(self._key))]
        return candidates if not kept and self._falls_back else kept

    def _accepts(self, value: float | None) -> bool:
        return self._passes_missing if value is None else self._compare(value, self._value)
