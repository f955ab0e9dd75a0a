"""`utilization-filter`: keeps the endpoints whose metrics are below limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from weft.epp.config.parameters import Kind, NotNegative, Parameters, Part, Reference
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import INFLIGHT, InflightProducer, Surroundings, plugin
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint


class Condition(Part, frozen=True, kw_only=True):
    """An upper limit of one metric."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: NotNegative

    def __post_init__(self) -> None:
        if self.metric == "kv-cache-utilization" and self.max_value > 1:
            raise ValueError(f"maxValue: {self.metric} is a share, 0 to 1, not {self.max_value:g}")


class UtilizationFilterParameters(Parameters, frozen=True, kw_only=True):
    """Upper limits of metrics; all of them must hold."""

    conditions: list[Condition]
    fallback_on_empty: bool = False
    in_flight_load_producer_name: InflightProducer = INFLIGHT

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError("needs at least one condition")

    def references(self) -> Iterable[Reference]:
        """Yields a reference to the producer that counts active requests, if one is configured."""
        is_counted = any(each.metric == "active-requests" for each in self.conditions)
        return super().references() if is_counted else ()


@plugin("utilization-filter", Kind.FILTER, UtilizationFilterParameters, is_alpha=True)
class UtilizationFilter:
    """Keeps the endpoints that are below every limit."""

    def __init__(self, parameters: UtilizationFilterParameters, around: Surroundings) -> None:
        inflight: InflightLoad | None = around.built.get(parameters.in_flight_load_producer_name)
        readers: Mapping[str, Callable[[Endpoint], float]] = {
            "active-requests": lambda each: inflight.num_requests(each) if inflight else 0,
            "running-requests": lambda each: each.load.num_running,
            "waiting-queue": lambda each: each.load.num_waiting,
            "kv-cache-utilization": lambda each: each.load.kv_usage,
        }
        self._caps = [(readers[each.metric], each.max_value) for each in parameters.conditions]
        self._falls_back = parameters.fallback_on_empty

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints below every limit; all candidates if none is and the fallback is on."""
        passing = [
            each for each in candidates if all(read(each) <= cap for read, cap in self._caps)
        ]
        return candidates if not passing and self._falls_back else passing
