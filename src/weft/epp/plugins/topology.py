"""`topology-extractor` with its filter and scorer: prefer endpoints near each other, which transfer blocks faster."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal

from weft.epp.config.parameters import Kind, Name, Parameters, Refers
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint

EXTRACTOR: Final = "topology-extractor"
# From the nearest to the farthest level, each with its score: roughly the relative speed of transfers.
LEVELS: Final[Mapping[str, float]] = MappingProxyType(
    {"host": 1.0, "rack": 0.2, "zone": 0.05, "region": 0.02}
)


class ExtractorParameters(Parameters, frozen=True, kw_only=True):
    """The labels with an endpoint's location. Without a label for the host, the endpoint's address stands for its
    host.
    """

    hostname: Name | None = None
    rack: Name | None = None
    zone: Name | None = None
    region: Name | None = None


@plugin(EXTRACTOR, Kind.TOPOLOGY, ExtractorParameters, is_alpha=True)
class TopologyExtractor:
    """Finds the nearest topology level (such as host or rack) that two endpoints share."""

    def __init__(self, parameters: ExtractorParameters, _: Surroundings) -> None:
        self._labels = {
            level: getattr(parameters, "hostname" if level == "host" else level) for level in LEVELS
        }

    def nearest(self, one: Endpoint, other: Endpoint) -> str | None:
        """Returns the nearest topology level that two endpoints share; None if no shared level is known."""
        for level, label in self._labels.items():
            if label is not None:
                place = one.labels.get(label)
                if place and place == other.labels.get(label):
                    return level
            elif level == "host" and one.host == other.host:
                return level
        return None


class ScorerParameters(Parameters, frozen=True, kw_only=True):
    """The label that contains an endpoint's location."""

    topology_producer_name: Annotated[str, Refers(Kind.TOPOLOGY, EXTRACTOR)] = EXTRACTOR


class FilterParameters(ScorerParameters, frozen=True, kw_only=True):
    """Maximum distance from the decode endpoint."""

    min_affinity: Literal["host", "rack", "zone", "region"] = "host"


@plugin("topology-affinity-scorer", Kind.SCORER, ScorerParameters, is_alpha=True)
class TopologyScorer:
    """Prefers endpoints near the decode endpoint. Scores 0.0 for all while no decode endpoint is picked."""

    def __init__(self, parameters: ScorerParameters, around: Surroundings) -> None:
        self._extractor: TopologyExtractor = around.plugin(parameters.topology_producer_name)

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns a score for the nearest topology level that each candidate shares with the decode endpoint."""
        peer = _peer(cycle)
        if peer is None:
            return [0.0] * len(candidates)
        nearest = (self._extractor.nearest(each, peer) for each in candidates)
        return [LEVELS.get(level or "", 0.0) for level in nearest]


@plugin("topology-affinity-filter", Kind.FILTER, FilterParameters, is_alpha=True)
class TopologyFilter:
    """Keeps the endpoints near the decode endpoint; all candidates while no decode endpoint is picked."""

    def __init__(self, parameters: FilterParameters, around: Surroundings) -> None:
        self._extractor: TopologyExtractor = around.plugin(parameters.topology_producer_name)
        levels = list(LEVELS)
        self._near = levels[: levels.index(parameters.min_affinity) + 1]

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints that share the configured topology level, or a nearer one, with the decode endpoint."""
        peer = _peer(cycle)
        if peer is None:
            return candidates
        return [each for each in candidates if self._extractor.nearest(each, peer) in self._near]


def _peer(cycle: Cycle) -> Endpoint | None:
    """Returns the endpoint that the first profile picked; None while that profile runs."""
    return cycle.runs[0].picked[0] if cycle.runs and cycle.runs[0].picked else None
