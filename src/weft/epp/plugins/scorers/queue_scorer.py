"""`queue-scorer` and `running-requests-size-scorer`: score endpoints by their load relative to the other candidates."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


def fewest_is_best(counts: Sequence[float]) -> list[float]:
    """Returns (max - count) / (max - min) for each count; 1.0 for all if the counts are equal."""
    most, fewest = max(counts), min(counts)
    if most == fewest:
        return [1.0] * len(counts)
    span = most - fewest
    return [(most - count) / span for count in counts]


@plugin("queue-scorer", Kind.SCORER)
class QueueScorer(Plugin[NoParameters]):
    """Prefers fewer waiting requests, relative to the other candidates."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for the shortest queue, 0.0 for the longest."""
        # As `expected_waiting`, without a call for each of a thousand endpoints
        return fewest_is_best([each.load.num_waiting + len(each.unseen) for each in candidates])


@plugin("running-requests-size-scorer", Kind.SCORER)
class RunningScorer(Plugin[NoParameters]):
    """Prefers fewer running requests, relative to the other candidates."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for the fewest running requests, 0.0 for the most."""
        return fewest_is_best([endpoint.expected_running for endpoint in candidates])
