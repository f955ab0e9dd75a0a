"""Deciders of disaggregated serving: plugins that decide whether a stage of a request runs on a second endpoint."""

from weft.epp.config.parameters import Count, Kind, NoParameters, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import APPROXIMATE, Plugin, PrefixProducer, plugin
from weft.epp.pool.endpoint import Endpoint

PREFIX_DECIDER = "prefix-based-pd-decider"


class PrefixDeciderParameters(Parameters, frozen=True, kw_only=True):
    """Minimum number of uncached prompt tokens for which prefill runs on a separate endpoint; 0 means that it never
    does.
    """

    non_cached_tokens: Count = 0
    prompt_tokens: Count = 0  # minimum length of the prompt
    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE


@plugin(PREFIX_DECIDER, Kind.DECIDER, PrefixDeciderParameters)
class PrefixDecider(Plugin[PrefixDeciderParameters]):
    """Uses a separate prefill endpoint if the decode endpoint would have to compute many prompt tokens."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """True if the decode endpoint lacks at least the configured number of prompt tokens in its cache."""
        parameters = self._parameters
        if not parameters.non_cached_tokens or cycle.num_prompt_tokens < parameters.prompt_tokens:
            return False
        producer = parameters.prefix_match_info_producer_name
        return cycle.num_uncached_tokens(decode, producer) >= parameters.non_cached_tokens


@plugin("always-disagg-pd-decider", Kind.DECIDER)
class AlwaysDecider(Plugin[NoParameters]):
    """Always uses a separate endpoint."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        return True


@plugin("always-disagg-multimodal-decider", Kind.DECIDER)
class MediaDecider(Plugin[NoParameters]):
    """Uses a separate encode endpoint if the request contains media."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """True if the request contains media."""
        return bool(cycle.request.media)
