"""Scorers of what suits one request: its adapter, a label its header names, its length, its cold start."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Kind, NoParameters, Parameters, Reference, Surroundings
from weft.epp.pool.endpoint import Endpoint
from weft.epp.scorers.prefix import PrefixScorer

PREFIX_SCORER = "prefix-cache-scorer"


class LoraAffinityScorer:
    """Where the adapter is, or fits, is better."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """1.0 active, 0.8 room for it, 0.6 waiting to be loaded, else 0.0."""
        return [_adapter_score(endpoint, cycle.model) for endpoint in candidates]


def _adapter_score(endpoint: Endpoint, model: str) -> float:
    adapters = endpoint.load.adapters
    if model in adapters.active:
        return 1.0
    if len(adapters.active) + len(adapters.waiting) < adapters.max_active:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0


class HeaderLabelParameters(Parameters, frozen=True, kw_only=True):
    """A request header and the label it should equal."""

    header_name: Annotated[str, msgspec.Meta(min_length=1)]
    label_key: Annotated[str, msgspec.Meta(min_length=1)]


class HeaderLabelScorer:
    """Endpoints labelled as the request's header says are better."""

    def __init__(self, parameters: HeaderLabelParameters, _: Surroundings) -> None:
        self._header = parameters.header_name.lower()
        self._label = parameters.label_key

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """1.0 if they are equal; all 0.0 without the header."""
        wanted = cycle.request.headers.get(self._header)
        if not wanted:
            return [0.0] * len(candidates)
        return [float(endpoint.labels.get(self._label) == wanted) for endpoint in candidates]


class NoHitLruParameters(Parameters, frozen=True, kw_only=True):
    """Whose prefix matches to go by, and how many endpoints to remember."""

    prefix_plugin_type: str = PREFIX_SCORER
    prefix_plugin_name: str | None = None
    lru_size: Annotated[int, msgspec.Meta(ge=1)] = 1024

    @property
    def scorer(self) -> str:
        """Name of the prefix scorer."""
        return self.prefix_plugin_name or self.prefix_plugin_type

    def references(self) -> Iterable[Reference]:
        """The prefix scorer."""
        key = "prefixPluginName" if self.prefix_plugin_name else "prefixPluginType"
        yield Reference(key, self.scorer, Kind.SCORER, PREFIX_SCORER)


class NoHitLruScorer:
    """Spreads requests that hit no cache: whoever served one longest ago comes first."""

    def __init__(self, parameters: NoHitLruParameters, around: Surroundings) -> None:
        scorer: PrefixScorer = around.plugin(parameters.scorer)
        self._producer = scorer.producer
        self._size = parameters.lru_size
        self._used: OrderedDict[Endpoint, None] = OrderedDict()  # longest ago first
        around.pool.on_left(lambda endpoint: self._used.pop(endpoint, None))

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """0.5 for all on any hit; else 1.0 for the never used, falling to 0.0 for the last used."""
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
        """A cold request makes its endpoints the last used."""
        if not self._is_cold(cycle):
            return
        for picks in schedule.picks.values():
            for endpoint in picks[:1]:
                self._used[endpoint] = None
                self._used.move_to_end(endpoint)
        while len(self._used) > self._size:
            self._used.popitem(last=False)

    def _is_cold(self, cycle: Cycle) -> bool:
        match = cycle.prefixes.get(self._producer)
        return match is None or not match.held
