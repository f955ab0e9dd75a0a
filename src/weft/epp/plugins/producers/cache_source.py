"""`p2p-source-producer`: names a server from which the chosen server fetches cached blocks, if that is faster than
computing them.
"""

import random

from weft.core.headers import CACHE_SOURCE
from weft.epp.config.parameters import AtLeastOne, Kind, Parameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import APPROXIMATE, PrefixProducer, Producer, Surroundings, plugin
from weft.epp.plugins.producers.approximate_prefix import PREFILL_PROFILE


class SourceParameters(Parameters, frozen=True, kw_only=True):
    """The producer of cached prefixes, the profile whose endpoint computes the prompt, and the minimum number of tokens
    that a transfer must save.
    """

    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE
    prefill_profile_name: str = PREFILL_PROFILE
    min_cached_token_delta: AtLeastOne = 1


@plugin("p2p-source-producer", Kind.PRODUCER, SourceParameters, is_alpha=True)
class SourceProducer(Producer):
    """Sets a request header with the address to fetch blocks from, for the sidecar of the server that computes the
    prompt.
    """

    def __init__(self, parameters: SourceParameters, _: Surroundings) -> None:
        self._producer = parameters.prefix_match_info_producer_name
        self._profile = parameters.prefill_profile_name
        self._least = parameters.min_cached_token_delta

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Chooses a source among the endpoints that have the most of the prompt cached, within one block. An endpoint
        with fewer waiting requests is more likely.
        """
        match = cycle.prefixes.get(self._producer)
        if match is None or not match.held:
            return
        most = max(match.held.values())
        sources = [each for each, num_blocks in match.held.items() if num_blocks >= most - 1]
        weights = [1 / (1 + each.expected_waiting) for each in sources]
        (source,) = random.choices(sources, weights)
        computes = (schedule.picks.get(self._profile) or (schedule.target,))[0]
        num_tokens = [
            match.num_tokens(each, cycle.num_prompt_tokens) for each in (source, computes)
        ]
        if num_tokens[0] - num_tokens[1] >= self._least:
            cycle.request_headers[CACHE_SOURCE] = source.address(is_grpc=cycle.request.is_grpc)
