"""`precise-prefix-cache-scorer`: the deprecated plugin that combines producer and scorer."""

from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.plugins.producers.precise_prefix import PreciseParameters, PrecisePrefixProducer
from weft.epp.plugins.scorers.prefix_cache import PrefixScorer, PrefixScorerParameters


@plugin(
    "precise-prefix-cache-scorer",
    (Kind.SCORER, Kind.PRODUCER),
    PreciseParameters,
    replacement="precise-prefix-cache-producer with prefix-cache-scorer",
)
class PrecisePrefixScorer(PrecisePrefixProducer):
    """The deprecated plugin that is both the producer of precise prefixes and the prefix scorer."""

    def __init__(self, parameters: PreciseParameters, around: Surroundings) -> None:
        super().__init__(parameters, around)
        self.producer = around.name
        own = PrefixScorerParameters(prefix_match_info_producer_name=around.name)
        self.score = PrefixScorer(own, around).score
