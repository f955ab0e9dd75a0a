"""Scorers of an endpoint's load, as it told and as the picker knows it since."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import NoParameters, Parameters, Surroundings
from weft.epp.pool.endpoint import Endpoint


def fewest_is_best(counts: Sequence[int]) -> list[float]:
    """(max - count) / (max - min); all equal: 1.0 each."""
    most, fewest = max(counts), min(counts)
    if most == fewest:
        return [1.0] * len(counts)
    span = most - fewest
    return [(most - count) / span for count in counts]


class QueueScorer:
    """Fewer waiting requests is better, relative to the other candidates."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """1.0 for the shortest queue, 0.0 for the longest."""
        return fewest_is_best([endpoint.num_waiting for endpoint in candidates])


class RunningScorer:
    """Fewer running requests is better, relative to the other candidates."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """1.0 for the fewest running, 0.0 for the most."""
        return fewest_is_best([endpoint.num_running for endpoint in candidates])


class KvUsageScorer:
    """More free KV cache is better."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """The free share."""
        return [1.0 - endpoint.load.kv_usage for endpoint in candidates]


class LoadAwareParameters(Parameters, frozen=True, kw_only=True):
    """A queue this long is as bad as any longer one."""

    threshold: Annotated[int, msgspec.Meta(ge=1)] = 128


class LoadAwareScorer:
    """Fewer waiting requests is better, against a fixed scale."""

    def __init__(self, parameters: LoadAwareParameters, _: Surroundings) -> None:
        self._threshold = parameters.threshold

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """0.5 for an empty queue, falling to 0.0 at the threshold."""
        limit = self._threshold
        return [0.5 * (1.0 - min(each.num_waiting, limit) / limit) for each in candidates]
