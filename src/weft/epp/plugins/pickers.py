"""Pickers: plugins that choose endpoints by their total scores."""

import random
from collections.abc import Sequence
from typing import Annotated

import msgspec

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class PickerParameters(Parameters, frozen=True, kw_only=True):
    """Number of endpoints to return. More than one serves gateways that read a list of fallbacks."""

    max_num_of_endpoints: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


@plugin("max-score-picker", Kind.PICKER, PickerParameters)
class MaxScorePicker(Plugin[PickerParameters]):
    """Chooses the endpoints with the highest total scores. Ties go to the endpoint with the fewest running requests,
    then to the one that was picked longest ago.
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
    """Chooses endpoints at random, with equal probabilities."""

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """Returns a random sample of the candidates."""
        return random.sample(
            list(candidates), min(self._parameters.max_num_of_endpoints, len(candidates))
        )


@plugin("weighted-random-picker", Kind.PICKER, PickerParameters)
class WeightedRandomPicker(Plugin[PickerParameters]):
    """Chooses endpoints at random with probabilities proportional to their total scores (A-Res sampling); with equal
    probabilities if all totals are 0 or less.
    """

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """Returns a weighted random sample. Endpoints without weight are added last, if the sample needs more
        endpoints.
        """
        # U^(1/w) underflows for small w; log(U)/w has the same order and does not underflow.
        keys = [
            (1, -random.expovariate(1.0) / total) if total > 0 else (0, random.random())
            for total in totals
        ]
        order = sorted(range(len(candidates)), key=keys.__getitem__, reverse=True)
        return [candidates[i] for i in order[: self._parameters.max_num_of_endpoints]]


def freshness(endpoint: Endpoint) -> tuple[int, int]:
    """Returns a sort key: fewest running requests first, then the endpoint that was picked longest ago."""
    return len(endpoint.unseen), endpoint.last_pick
