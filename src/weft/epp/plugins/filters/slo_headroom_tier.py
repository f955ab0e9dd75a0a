"""`slo-headroom-tier-filter`: keeps the endpoints that are predicted to meet the request's SLO, and sometimes the
others.
"""

import random
from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Parameters, Share
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import LATENCY, LatencyProducer, Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class HeadroomTierParameters(Parameters, frozen=True, kw_only=True):
    """Probability with which the filter keeps the endpoints without headroom, so that an endpoint that is fast again is
    found.
    """

    epsilon_explore_neg: Share = 0.01
    latency_prediction_info_producer_name: LatencyProducer = LATENCY


@plugin("slo-headroom-tier-filter", Kind.FILTER, HeadroomTierParameters)
class HeadroomTierFilter(Plugin[HeadroomTierParameters]):
    """Keeps either the endpoints that meet the SLO or those that miss it; all endpoints without predictions."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints that meet the SLO or, with a small probability, the others. An endpoint without a
        prediction counts as missing the SLO.
        """
        known = cycle.predictions.get(self._parameters.latency_prediction_info_producer_name)
        if known is None or not any(each in known.of for each in candidates):
            return candidates
        meeting = [
            each
            for each in candidates
            if (prediction := known.of.get(each)) is not None and prediction.meets
        ]
        if not meeting or len(meeting) == len(candidates):
            return candidates
        if random.random() >= self._parameters.epsilon_explore_neg:
            return meeting
        chosen = set(meeting)
        return [each for each in candidates if each not in chosen]
