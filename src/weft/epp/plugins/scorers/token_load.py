"""`token-load-scorer`: scores endpoints by the prompt tokens of running requests, as the picker counts them."""

from collections.abc import Sequence

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import INFLIGHT, InflightProducer, Surroundings, plugin
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint


class TokenLoadParameters(Parameters, frozen=True, kw_only=True):
    """Number of in-flight tokens at which the score reaches 0."""

    queue_threshold_tokens: AtLeastOne = 4194304
    in_flight_load_producer_name: InflightProducer = INFLIGHT


@plugin("token-load-scorer", Kind.SCORER, TokenLoadParameters)
class TokenLoadScorer:
    """Prefers fewer prompt tokens of running requests, on a fixed scale."""

    def __init__(self, parameters: TokenLoadParameters, around: Surroundings) -> None:
        self._threshold = parameters.queue_threshold_tokens
        self._inflight: InflightLoad = around.plugin(parameters.in_flight_load_producer_name)

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for no tokens, falling to 0.0 at the threshold."""
        threshold, num_tokens = self._threshold, self._inflight.num_tokens
        return [1.0 - min(1.0, num_tokens(endpoint) / threshold) for endpoint in candidates]
