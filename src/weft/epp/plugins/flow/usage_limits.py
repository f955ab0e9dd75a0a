"""Usage-limit policies: the saturation of the pool up to which requests of each priority are dispatched."""

from collections.abc import Sequence
from typing import Literal

from weft.epp.config.parameters import Kind, NoParameters, Parameters, Share
from weft.epp.decision.plugin import STATIC_LIMIT, Plugin, Surroundings, plugin


@plugin(STATIC_LIMIT, Kind.USAGE_LIMIT)
class StaticLimit(Plugin[NoParameters]):
    """All bands may dispatch up to saturation 1."""

    def ceilings(self, priorities: Sequence[int], _: float) -> Sequence[float]:
        return [1.0] * len(priorities)


class HoldbackParameters(Parameters, frozen=True, kw_only=True):
    """Saturation up to which the lowest and the highest priority may dispatch."""

    shape: Literal["linear"] = "linear"
    domain: Literal["rank", "value"] = "rank"
    min_ceiling: Share
    max_ceiling: Share = 1.0

    def __post_init__(self) -> None:
        if self.min_ceiling > self.max_ceiling:
            raise ValueError("minCeiling must not be more than maxCeiling")


@plugin("priority-holdback-policy", Kind.USAGE_LIMIT, HoldbackParameters, is_alpha=True)
class Holdback(Plugin[HoldbackParameters]):
    """Lower priorities may dispatch only up to a lower saturation. Ceilings fall evenly with the rank of the priority,
    or with its value.
    """

    def ceilings(self, priorities: Sequence[int], _: float) -> Sequence[float]:
        highest = self._parameters.max_ceiling
        width = highest - self._parameters.min_ceiling
        is_by_rank = self._parameters.domain == "rank"
        places = range(len(priorities)) if is_by_rank else [priorities[0] - p for p in priorities]
        return [highest - width * place / (places[-1] or 1) for place in places]


@plugin("soft-reflective-ceiling-policy", Kind.USAGE_LIMIT, is_alpha=True)
class SoftReflectiveCeiling:
    """The fuller the pool, the lower the ceilings of low priorities. Below saturation 1, a request above its ceiling is
    still dispatched now and then.
    """

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        self._num_calls = 0

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        last = max(1, len(priorities) - 1)
        self._num_calls += 1
        is_open = saturation < 1.0 and self._num_calls % max(
            1, round(saturation / (1.0 - saturation))
        ) == 0  # fmt: skip
        if is_open:
            return [1.0] * len(priorities)
        return [1.0 - rank * saturation / last for rank in range(len(priorities))]
