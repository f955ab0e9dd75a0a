"""`header-label-affinity-scorer`: prefers endpoints whose label equals a request header."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Name, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint


class HeaderLabelParameters(Parameters, frozen=True, kw_only=True):
    """Name of the request header, and of the label that is compared with it."""

    header_name: Name
    label_key: Name


@plugin("header-label-affinity-scorer", Kind.SCORER, HeaderLabelParameters, is_alpha=True)
class HeaderLabelScorer:
    """Prefers endpoints whose label equals the request header."""

    def __init__(self, parameters: HeaderLabelParameters, _: Surroundings) -> None:
        self._header = parameters.header_name.lower()
        self._label = parameters.label_key

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for endpoints whose label equals the header, otherwise 0.0; 0.0 for all endpoints without the
        header.
        """
        wanted = cycle.request.headers.get(self._header)
        if not wanted:
            return [0.0] * len(candidates)
        return [float(endpoint.labels.get(self._label) == wanted) for endpoint in candidates]
