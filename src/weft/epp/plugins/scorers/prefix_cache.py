"""`prefix-cache-scorer`: prefers endpoints that have more of the prompt cached."""

from collections.abc import Sequence
from typing import Final

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters, Share
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import APPROXIMATE, PrefixProducer, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint

PREFIX_SCORER: Final = "prefix-cache-scorer"


class PrefixScorerParameters(Parameters, frozen=True, kw_only=True):
    """The producer of cached prefixes, and the weight of the prefix's length beside its share of the prompt."""

    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE
    match_length_weight: Share = 0.0
    match_length_scale_tokens: AtLeastOne = 8192


@plugin(PREFIX_SCORER, Kind.SCORER, PrefixScorerParameters)
class PrefixScorer:
    """Prefers endpoints with a longer cached prefix."""

    def __init__(self, parameters: PrefixScorerParameters, _: Surroundings) -> None:
        self.producer = parameters.prefix_match_info_producer_name
        self._weight = parameters.match_length_weight
        self._scale = parameters.match_length_scale_tokens

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns the cached share of the prompt, blended with the square of the cached length."""
        match = cycle.prefixes.get(self.producer)
        if match is None or not match.num_blocks or not match.weight:
            return [0.0] * len(candidates)
        held, total, weight = match.weight, match.num_blocks, self._weight
        if not weight:
            return [held.get(endpoint, 0.0) / total for endpoint in candidates]
        scale = self._scale
        tokens = [match.held.get(endpoint, 0) * match.block_size for endpoint in candidates]
        return [
            (1.0 - weight) * held.get(endpoint, 0.0) / total
            + weight * min(1.0, tokens[i] / scale) ** 2
            for i, endpoint in enumerate(candidates)
        ]
