"""`active-request-scorer`: requests under way, counted by the picker itself."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from weft.epp.config.parameters import Kind, Parameters, Reference
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import INFLIGHT, Surroundings, inflight_reference, plugin
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint


class ActiveRequestParameters(Parameters, frozen=True, kw_only=True):
    """How few requests are as good as none, and the best score of a busy endpoint."""

    idle_threshold: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_busy_score: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    in_flight_load_producer_name: str = INFLIGHT
    request_timeout: str | None = None

    def references(self) -> Iterable[Reference]:
        """What counts."""
        yield inflight_reference(self.in_flight_load_producer_name)

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """A key of older files."""
        if self.request_timeout is not None:
            yield "requestTimeout", "requests count until their responses end"


@plugin("active-request-scorer", Kind.SCORER, ActiveRequestParameters)
class ActiveRequestScorer:
    """Fewer requests under way is better, relative to the busiest candidate.

    Those that failed at an endpoint count until it reports again: of a server that is dead all would fail at
    once, and it would always have the fewest.
    """

    def __init__(self, parameters: ActiveRequestParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._inflight: InflightLoad = around.plugin(parameters.in_flight_load_producer_name)

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """1.0 when idle; busy ones by their distance from the busiest."""
        idle, best = self._parameters.idle_threshold, self._parameters.max_busy_score
        counts = [
            self._inflight.num_requests(endpoint) + len(endpoint.failed) for endpoint in candidates
        ]
        most = max(counts)
        return [1.0 if count <= idle else (most - count) / most * best for count in counts]
