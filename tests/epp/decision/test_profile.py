"""A profile by itself: how scores are summed."""

import math
from collections.abc import Sequence

import pytest

from tests.epp.pools import cycle, pool_of
from weft.epp.decision.profile import PickerStep, SchedulingProfile, ScorerStep


class Silent:
    """A timer that nobody reads."""

    def observe(self, amount: float) -> None:
        pass


class Said:
    """Scores that were said before."""

    def __init__(self, *scores: float) -> None:
        self._scores = list(scores)

    def score(self, _cycle, _candidates) -> list[float]:
        return self._scores


class First:
    """Picks by the order of the pool."""

    def pick(self, scored, _totals) -> Sequence:
        return scored[:1]


def totals_of(*scorers: tuple[float, Said]) -> list[float]:
    """The sums of these scorers with their weights, for three endpoints."""
    endpoints = list(pool_of(3))
    steps = [ScorerStep(str(i), said, Silent(), weight) for i, (weight, said) in enumerate(scorers)]
    made = SchedulingProfile("p", (), steps, PickerStep("first", First(), Silent()))
    return made.run(cycle(endpoints), endpoints).totals


def test_a_score_that_is_no_number_counts_as_0():
    """A server's metrics may say NaN: its endpoint is not the best of all for that, and others keep their scores."""
    assert totals_of((2.0, Said(math.nan, 0.5, 1.0))) == [0.0, 1.0, 2.0]
    assert totals_of((1.0, Said(0.25, 0.5, 1.0)), (1.0, Said(math.nan, 0.0, 0.0)))[0] == 0.25


@pytest.mark.parametrize(
    ("score", "counted"), [(-1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (7.0, 1.0), (math.inf, 1.0), (-math.inf, 0.0)]
)  # fmt: skip
def test_a_score_counts_between_0_and_1(score, counted):
    """A scorer that says more has no more weight than others."""
    assert totals_of((3.0, Said(score, 0.0, 0.0)))[0] == 3.0 * counted
