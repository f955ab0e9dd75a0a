"""`load-aware-scorer`: scores endpoints by queue length on a fixed scale."""

from collections.abc import Sequence

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class LoadAwareParameters(Parameters, frozen=True, kw_only=True):
    """Queue length from which on the score is 0.0."""

    threshold: AtLeastOne = 128


@plugin("load-aware-scorer", Kind.SCORER, LoadAwareParameters)
class LoadAwareScorer(Plugin[LoadAwareParameters]):
    """Prefers fewer waiting requests, on a fixed scale."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 0.5 for an empty queue, falling to 0.0 at the threshold."""
        limit = self._parameters.threshold
        return [0.5 * (1.0 - min(each.expected_waiting, limit) / limit) for each in candidates]
