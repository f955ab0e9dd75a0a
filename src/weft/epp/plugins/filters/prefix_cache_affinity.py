"""`prefix-cache-affinity-filter`: stay where the prefix is, unless waiting there costs more."""

import random
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters, Reference
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import (
    APPROXIMATE,
    INFLIGHT,
    Surroundings,
    inflight_reference,
    plugin_type,
    prefix_reference,
)
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]


class PrefixAffinityParameters(Parameters, frozen=True, kw_only=True):
    """When an endpoint counts as holding the prefix, and what staying may cost."""

    affinity_threshold: _Share = 0.80
    exploration_probability: _Share = 0.0
    max_ttft_penalty_ms: _AtLeast0 = msgspec.field(default=18000.0, name="maxTTFTPenaltyMs")
    ttft_source: Literal["prefillThroughput"] = "prefillThroughput"  # the other needs a predictor
    peak_prefill_throughput: Annotated[float, msgspec.Meta(gt=0)] = 15928.0  # tokens/s
    prefix_match_info_producer_name: str = APPROXIMATE
    in_flight_load_producer_name: str = INFLIGHT

    def references(self) -> Iterable[Reference]:
        """Prefixes, and what is under way."""
        yield prefix_reference(self.prefix_match_info_producer_name)
        yield inflight_reference(self.in_flight_load_producer_name)


class PrefixAffinityFilter:
    """Keeps the endpoints that hold most of the prompt."""

    def __init__(self, parameters: PrefixAffinityParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        self._inflight: InflightLoad = surroundings.plugin(parameters.in_flight_load_producer_name)

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """The sticky ones; all if there are none, when exploring, or when they are too busy."""
        parameters = self._parameters
        match = cycle.prefixes.get(parameters.prefix_match_info_producer_name)
        if match is None or not match.num_blocks:
            return candidates
        least = parameters.affinity_threshold * match.num_blocks
        sticky = [each for each in candidates if match.weight.get(each, 0.0) >= least]
        if not sticky or len(sticky) == len(candidates):
            return candidates
        if random.random() < parameters.exploration_probability:
            return candidates
        return candidates if self._costs_too_much(sticky, candidates) else sticky

    def _costs_too_much(self, sticky: Sequence[Endpoint], candidates: Sequence[Endpoint]) -> bool:
        allowed_ms = self._parameters.max_ttft_penalty_ms
        if not allowed_ms:
            return False
        passing = set(sticky)
        others = [each for each in candidates if each not in passing]
        return min(map(self._ttft_ms, sticky)) - min(map(self._ttft_ms, others)) > allowed_ms

    def _ttft_ms(self, endpoint: Endpoint) -> float:
        return 1000 * self._inflight.num_tokens(endpoint) / self._parameters.peak_prefill_throughput


ROWS: Final = (
    plugin_type(
        "prefix-cache-affinity-filter", Kind.FILTER, PrefixAffinityFilter, PrefixAffinityParameters
    ),
)
