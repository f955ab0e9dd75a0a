"""`load-aware-scorer`: the queue against a fixed scale."""

from collections.abc import Sequence

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class LoadAwareParameters(Parameters, frozen=True, kw_only=True):
    """Queue length from which the score is the worst."""

    threshold: AtLeastOne = 128


@plugin("load-aware-scorer", Kind.SCORER, LoadAwareParameters)
class LoadAwareScorer(Plugin[LoadAwareParameters]):
    """Fewer waiting requests is better, against a fixed scale."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """0.5 for an empty queue, falling to 0.0 at the threshold."""
        limit = self._parameters.threshold
        return [0.5 * (1.0 - min(each.expected_waiting, limit) / limit) for each in candidates]
