"""`no-hit-lru-scorer`: distributes requests whose prefix no endpoint has cached."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters, Reference
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import PrefixProducer, Surroundings, plugin
from weft.epp.plugins.scorers.prefix_cache import PREFIX_SCORER, PrefixScorer
from weft.epp.pool.endpoint import Endpoint


class NoHitLruParameters(Parameters, frozen=True, kw_only=True):
    """The producer of cached prefixes, and the number of endpoints to remember."""

    prefix_plugin_type: str = PREFIX_SCORER
    prefix_plugin_name: str | None = None
    # Instead of prefixPluginName, which names a scorer.
    prefix_match_info_producer_name: PrefixProducer | None = None
    lru_size: AtLeastOne = 1024

    def __post_init__(self) -> None:
        if self.prefix_match_info_producer_name is not None and self.prefix_plugin_name is not None:
            raise ValueError("prefixMatchInfoProducerName or prefixPluginName: give one of them")

    @property
    def scorer(self) -> str:
        """Name of the prefix scorer that names the producer."""
        return self.prefix_plugin_name or self.prefix_plugin_type

    def references(self) -> Iterable[Reference]:
        """Yields a reference to the producer, or to the prefix scorer that names the producer."""
        if self.prefix_match_info_producer_name is not None:
            yield from super().references()
            return
        key = "prefixPluginName" if self.prefix_plugin_name else "prefixPluginType"
        yield Reference(key, self.scorer, Kind.SCORER, PREFIX_SCORER)


@plugin("no-hit-lru-scorer", Kind.SCORER, NoHitLruParameters)
class NoHitLruScorer:
    """Distributes requests without a cache hit: prefers the endpoint that got such a request longest ago."""

    def __init__(self, parameters: NoHitLruParameters, around: Surroundings) -> None:
        if parameters.prefix_match_info_producer_name is not None:
            self._producer = parameters.prefix_match_info_producer_name
        else:
            scorer: PrefixScorer = around.plugin(parameters.scorer)
            self._producer = scorer.producer
        self._size = parameters.lru_size
        self._used: OrderedDict[Endpoint, None] = OrderedDict()  # oldest use first
        self._pool = around.pool

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 0.5 for all endpoints if the request has a cache hit. Otherwise returns 1.0 for endpoints that never
        got such a request, falling to 0.0 for the endpoint that got the last one.
        """
        if not self._is_cold(cycle):
            return [0.5] * len(candidates)
        among = set(candidates)
        used = [endpoint for endpoint in self._used if endpoint in among]
        if len(candidates) == 1 or not used:
            return [1.0] * len(candidates)
        num_unused, last = len(candidates) - len(used), len(candidates) - 1
        rank = {endpoint: num_unused + i for i, endpoint in enumerate(used)}
        return [1.0 - rank.get(endpoint, 0) / last for endpoint in candidates]

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Records that a request without a cache hit went to these endpoints."""
        if not self._is_cold(cycle):
            return
        for picks in schedule.picks.values():
            for endpoint in picks[:1]:
                self._used[endpoint] = None
                self._used.move_to_end(endpoint)
        if len(self._used) > len(self._pool):
            self._forget_absent()
        while len(self._used) > self._size:
            self._used.popitem(last=False)

    def _forget_absent(self) -> None:
        """Drops endpoints that have left. A listener of the pool would outlive this plugin if a reload replaces it."""
        for endpoint in self._used.keys() - set(self._pool):
            del self._used[endpoint]

    def _is_cold(self, cycle: Cycle) -> bool:
        match = cycle.prefixes.get(self._producer)
        return match is None or not match.held
