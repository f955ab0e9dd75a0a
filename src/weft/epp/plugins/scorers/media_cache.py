"""`mm-embeddings-cache-scorer`: how much of a request's media is encoded already."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import MEDIA_CACHE, Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class MediaScorerParameters(Parameters, frozen=True, kw_only=True):
    """Nothing to set."""

    needs = (MEDIA_CACHE,)


@plugin("mm-embeddings-cache-scorer", Kind.SCORER, MediaScorerParameters)
class MediaScorer(Plugin[MediaScorerParameters]):
    """Prefers endpoints with more of the request's media; all media count alike."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """The share that the endpoint was sent before; 0.0 for all without media."""
        held = cycle.held_media.get(MEDIA_CACHE, {})
        return [held.get(endpoint, 0.0) for endpoint in candidates]
