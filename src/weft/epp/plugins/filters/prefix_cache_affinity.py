"""`prefix-cache-affinity-filter`: keeps the endpoints that have the prompt's prefix cached, unless waiting at them
costs more than computing the prefix.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from weft.epp.config.parameters import Kind, NotNegative, Parameters, Positive, Reference, Share
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import (
    APPROXIMATE,
    INFLIGHT,
    LATENCY,
    InflightProducer,
    LatencyProducer,
    PrefixProducer,
    Surroundings,
    plugin,
)
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint

# By source of the TTFT: parameters that are only for the other source.
_OTHERS: Final = {
    "prefillThroughput": {"latencyPredictionInfoProducerName"},
    "latencyPredictor": {"peakPrefillThroughput", "inFlightLoadProducerName"},
}


class PrefixAffinityParameters(Parameters, frozen=True, kw_only=True):
    """Share of the prompt that an endpoint must have cached, and the additional time to first token that is accepted
    for it.
    """

    affinity_threshold: Share = 0.80
    exploration_probability: Share = 0.0
    max_ttft_penalty_ms: NotNegative = msgspec.field(default=18000.0, name="maxTTFTPenaltyMs")
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    peak_prefill_throughput: Positive = 15928.0  # tokens/s
    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE
    in_flight_load_producer_name: InflightProducer = INFLIGHT
    latency_prediction_info_producer_name: LatencyProducer = LATENCY

    def references(self) -> Iterable[Reference]:
        """Yields references to the producer of cached prefixes, and to that of in-flight load or latency
        predictions.
        """
        left_out = _OTHERS[self.ttft_source]
        return (each for each in super().references() if each.key not in left_out)

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Yields the parameters that are set but belong to the source of the TTFT that is not used."""
        for key in self.set_keys():
            if key in _OTHERS[self.ttft_source]:
                yield key, f"ttftSource is {self.ttft_source}"


@plugin("prefix-cache-affinity-filter", Kind.FILTER, PrefixAffinityParameters)
class PrefixAffinityFilter:
    """Keeps the endpoints that have most of the prompt cached."""

    def __init__(self, parameters: PrefixAffinityParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        self._inflight: InflightLoad | None = None
        if parameters.ttft_source == "prefillThroughput":
            self._inflight = surroundings.plugin(parameters.in_flight_load_producer_name)

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints that have the prefix cached. Returns all candidates if there are none, if they are too
        busy, or with a small probability to explore.
        """
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
        return candidates if self._costs_too_much(cycle, sticky, candidates) else sticky

    def _costs_too_much(
        self, cycle: Cycle, sticky: Sequence[Endpoint], candidates: Sequence[Endpoint]
    ) -> bool:
        allowed_s = self._parameters.max_ttft_penalty_ms / 1000
        if not allowed_s:
            return False
        passing = set(sticky)
        ttft_s = self._ttft_s(cycle, candidates)
        here = [ttft_s[each] for each in sticky if each in ttft_s]
        there = [ttft_s[each] for each in candidates if each in ttft_s and each not in passing]
        # As in the reference: without predictions for both groups, the request is not bound to the cached endpoints.
        return not here or not there or min(here) - min(there) > allowed_s

    def _ttft_s(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Mapping[Endpoint, float]:
        """Returns the predicted seconds to first token of each candidate that has a prediction."""
        if self._inflight is not None:
            throughput = self._parameters.peak_prefill_throughput
            return {each: self._inflight.num_tokens(each) / throughput for each in candidates}
        known = cycle.predictions.get(self._parameters.latency_prediction_info_producer_name)
        return {} if known is None else {each: found.ttft_s for each, found in known.of.items()}
