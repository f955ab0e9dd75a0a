"""Pickers: from total scores to the chosen endpoints."""

import random
from collections.abc import Sequence
from typing import Annotated

import msgspec

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class PickerParameters(Parameters, frozen=True, kw_only=True):
    """Number of endpoints to return; more than one is for gateways that read a fallback list."""

    max_num_of_endpoints: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


@plugin("max-score-picker", Kind.PICKER, PickerParameters)
class MaxScorePicker(Plugin[PickerParameters]):
    """Chooses the highest totals. Ties go to the endpoint with the fewest running requests, then to the one picked
    longest ago.
    """

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """Returns the best endpoints. Equal scores are spread, so that a burst does not go to one endpoint."""
        if self._parameters.max_num_of_endpoints == 1:
            best = max(totals)
            tied = [candidates[i] for i, total in enumerate(totals) if total == best]
            return [min(tied, key=freshness)] if len(tied) > 1 else tied
        order = sorted(
            range(len(candidates)), key=lambda i: (-totals[i], *freshness(candidates[i]))
        )
        return [candidates[i] for i in order[: self._parameters.max_num_of_endpoints]]


@plugin("random-picker", Kind.PICKER, PickerParameters)
class RandomPicker(Plugin[PickerParameters]):
    """Chooses any endpoint, with equal probability."""

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """A random sample."""
        return random.sample(
            list(candidates), min(self._parameters.max_num_of_endpoints, len(candidates))
        )


@plugin("weighted-random-picker", Kind.PICKER, PickerParameters)
class WeightedRandomPicker(Plugin[PickerParameters]):
    """Chooses with probabilities proportional to the totals (A-Res sampling); if all totals are 0 or less, with equal
    ones.
    """

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """A weighted sample; endpoints without weight come last, to fill up the number."""
        # U^(1/w) underflows for small w; log(U)/w has the same order and does not underflow.
        keys = [
            (1, -random.expovariate(1.0) / total) if total > 0 else (0, random.random())
            for total in totals
        ]
        order = sorted(range(len(candidates)), key=keys.__getitem__, reverse=True)
        return [candidates[i] for i in order[: self._parameters.max_num_of_endpoints]]


def freshness(endpoint: Endpoint) -> tuple[int, int]:
    """Sort key: fewest running requests first, then the endpoint that was picked longest ago."""
    return len(endpoint.unseen), endpoint.last_pick
