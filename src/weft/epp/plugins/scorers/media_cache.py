"""`mm-embeddings-cache-scorer`: prefers endpoints that have encoded the request's media before."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import MEDIA_CACHE, Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class MediaScorerParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of the scorer, which has no settings."""

    needs = (MEDIA_CACHE,)


@plugin("mm-embeddings-cache-scorer", Kind.SCORER, MediaScorerParameters)
class MediaScorer(Plugin[MediaScorerParameters]):
    """Prefers endpoints that got more of the request's media before; all media count equally."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns the share of the request's media that the endpoint got before; 0.0 for a request without media."""
        held = cycle.held_media.get(MEDIA_CACHE, {})
        return [held.get(endpoint, 0.0) for endpoint in candidates]
