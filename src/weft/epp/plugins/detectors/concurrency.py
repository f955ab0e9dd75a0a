"""`concurrency-detector`: saturation as the number of running requests or tokens, relative to a limit per endpoint."""

from collections.abc import Sequence
from typing import Literal

from weft.epp.config.parameters import AtLeastOne, Kind, NotNegative, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import INFLIGHT, InflightProducer, Surroundings, plugin
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint


class ConcurrencyParameters(Parameters, frozen=True, kw_only=True):
    """Number of running requests, or of their tokens, at which an endpoint is full."""

    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_concurrency: AtLeastOne = 100
    max_token_concurrency: AtLeastOne = 1_000_000
    headroom: NotNegative = 0.0
    in_flight_load_producer_name: InflightProducer = INFLIGHT


@plugin("concurrency-detector", (Kind.DETECTOR, Kind.FILTER), ConcurrencyParameters)
class ConcurrencyDetector:
    """Saturation is the picker's count of running requests (or tokens) divided by the endpoints' limit. Needs no load
    reports.
    """

    def __init__(self, parameters: ConcurrencyParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        self._inflight: InflightLoad = surroundings.plugin(parameters.in_flight_load_producer_name)

    def saturation(
        self, endpoints: Sequence[Endpoint], _now: float, _stage: str | None = None
    ) -> float:
        """Returns the saturation; 1.0 and above mean that there is no capacity."""
        if not endpoints:
            return 1.0
        # All have the same capacity, so the mean of ratios is the ratio of sums.
        return sum(map(self._ratio, endpoints)) / len(endpoints)

    # The picker itself counts running requests, so the value is never stale.
    expected_saturation = saturation

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints below their limit; all of them if none is."""
        limit = 1.0 + self._parameters.headroom
        return [each for each in candidates if self._ratio(each) <= limit] or candidates

    def _ratio(self, endpoint: Endpoint) -> float:
        requests = self._inflight.num_requests(endpoint) / self._parameters.max_concurrency
        tokens = self._inflight.num_tokens(endpoint) / self._parameters.max_token_concurrency
        match self._parameters.concurrency_mode:
            case "requests":
                return requests
            case "tokens":
                return tokens
            case "hybrid":
                return max(requests, tokens)
