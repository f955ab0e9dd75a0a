"""`endpoint-attribute-filter`: keeps endpoints by a condition on a custom metric."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters, Reference
from weft.epp.decision.attributes import attribute_reader, attribute_references
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison of the metric's value with a number."""

    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    value: float


class ThresholdAlgorithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The algorithm of the filter: the comparison with a threshold."""

    threshold: Threshold
    type: Literal["threshold"] = "threshold"


class AttributeFilterParameters(Parameters, frozen=True, kw_only=True):
    """The custom metric and the condition."""

    attribute: str
    algorithm: ThresholdAlgorithm
    producer: str | None = None  # None: the extractor of the load data
    on_missing: Literal["Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False

    def references(self) -> Iterable[Reference]:
        """Yields a reference to the plugin that reads the attribute."""
        return attribute_references("attribute", self.attribute, self.producer)


@plugin("endpoint-attribute-filter", Kind.FILTER, AttributeFilterParameters, is_alpha=True)
class AttributeFilter:
    """Keeps the endpoints whose custom metric meets the condition."""

    def __init__(self, parameters: AttributeFilterParameters, around: Surroundings) -> None:
        self._read = attribute_reader(parameters.attribute, parameters.producer, around)
        self._compare = _COMPARE[parameters.algorithm.threshold.operator]
        self._value = parameters.algorithm.threshold.value
        self._passes_missing = parameters.on_missing == "Pass"
        self._falls_back = parameters.fallback_on_empty

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose attribute meets the condition; all candidates if none does and the fallback is
        on.
        """
        passing = [each for each in candidates if self._accepts(self._read(each, cycle.now))]
        return candidates if not passing and self._falls_back else passing

    def _accepts(self, value: float | None) -> bool:
        return self._passes_missing if value is None else self._compare(value, self._value)
