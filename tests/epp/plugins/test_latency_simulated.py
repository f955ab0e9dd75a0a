"""What predicted latency is worth, in virtual time: the same seed always says the same."""

import pytest

from benchmarks.latency import BALANCED, predicting, run
from benchmarks.latency_workers import share_met

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["least", "most"])
def test_more_objectives_are_met_than_by_load_and_prefix(strategy: str, seed: int):
    """Four workers of different speed, and a mixed load of which three quarters have objectives."""
    balanced = share_met(run(BALANCED, 5.0, 120.0, seed))
    predicted = share_met(run(predicting("max-score-picker", strategy), 5.0, 120.0, seed))
    assert predicted > balanced
