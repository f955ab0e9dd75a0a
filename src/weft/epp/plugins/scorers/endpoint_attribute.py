"""`endpoint-attribute-scorer`: scores endpoints by a custom metric."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters, Part, Reference
from weft.epp.decision.attributes import attribute_reader, attribute_references
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint


class FixedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of the metric that score 0 and 1, independent of the candidates."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if self.min >= self.max:
            raise ValueError(f"min must be less than max, got {self.min} and {self.max}")


class AdaptiveRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range from the lowest to the highest value among the candidates."""


class Normalization(Part, frozen=True, kw_only=True):
    """The range of values that maps to scores from 0 to 1; adaptive unless a fixed range is given."""

    adaptive_range: AdaptiveRange | None = None
    fixed_range: FixedRange | None = None

    def __post_init__(self) -> None:
        if self.adaptive_range is not None and self.fixed_range is not None:
            raise ValueError("adaptiveRange and fixedRange exclude each other")


class LinearAlgorithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps the range of values to scores linearly."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()


class AttributeScorerParameters(Parameters, frozen=True, kw_only=True):
    """A custom metric, and how its values map to scores."""

    attribute_key: str
    algorithm: LinearAlgorithm
    producer: str | None = None  # None: the extractor of the load data

    def references(self) -> Iterable[Reference]:
        """Yields a reference to the plugin that reads the attribute."""
        return attribute_references("attributeKey", self.attribute_key, self.producer)


@plugin("endpoint-attribute-scorer", Kind.SCORER, AttributeScorerParameters, is_alpha=True)
class AttributeScorer:
    """A linear score of one custom metric; endpoints without the metric score 0.0."""

    def __init__(self, parameters: AttributeScorerParameters, around: Surroundings) -> None:
        self._read = attribute_reader(parameters.attribute_key, parameters.producer, around)
        self._is_lower_better = parameters.algorithm.type == "linear_lower_is_better"
        self._fixed = parameters.algorithm.normalization.fixed_range

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 0.0 for the worst value, 1.0 for the best."""
        values = [self._read(endpoint, cycle.now) for endpoint in candidates]
        known = [value for value in values if value is not None]
        if not known:
            return [0.0] * len(candidates)
        low, high = (self._fixed.min, self._fixed.max) if self._fixed else (min(known), max(known))
        return [0.0 if value is None else self._rate(value, low, high) for value in values]

    def _rate(self, value: float, low: float, high: float) -> float:
        if low == high:
            return 1.0
        share = (value - low) / (high - low)
        return 1.0 - share if self._is_lower_better else share
