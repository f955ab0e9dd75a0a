"""`active-request-scorer`: scores endpoints by running requests, as the picker counts them."""

from collections.abc import Sequence
from typing import Annotated

from weft.epp.config.parameters import Count, Ignored, Kind, Parameters, Share
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import INFLIGHT, InflightProducer, Surroundings, plugin
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint


class ActiveRequestParameters(Parameters, frozen=True, kw_only=True):
    """Number of running requests up to which an endpoint counts as idle, and the highest score of an endpoint that is
    not idle.
    """

    idle_threshold: Count = 0
    max_busy_score: Share = 1.0
    in_flight_load_producer_name: InflightProducer = INFLIGHT
    request_timeout: Annotated[str | None, Ignored("requests count until their responses end")] = (
        None
    )


@plugin("active-request-scorer", Kind.SCORER, ActiveRequestParameters)
class ActiveRequestScorer:
    """Prefers fewer running requests, relative to the busiest candidate.

    A failed request counts until its endpoint reports again: otherwise a dead server, where requests fail at once,
    would always have the fewest running requests.
    """

    def __init__(self, parameters: ActiveRequestParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._inflight: InflightLoad = around.plugin(parameters.in_flight_load_producer_name)

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for idle endpoints; for others, a score that falls to 0.0 for the busiest candidate."""
        idle, best = self._parameters.idle_threshold, self._parameters.max_busy_score
        counts = [
            self._inflight.num_requests(endpoint) + len(endpoint.failed) for endpoint in candidates
        ]
        most = max(counts)
        return [1.0 if count <= idle else (most - count) / most * best for count in counts]
