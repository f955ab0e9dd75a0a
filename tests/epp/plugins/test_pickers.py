from collections import Counter

import pytest

from tests.epp.pools import around, parameters, pool_of
from weft.epp.plugins.pickers import (
    MaxScorePicker,
    PickerParameters,
    RandomPicker,
    WeightedRandomPicker,
)


def settings(count: int) -> PickerParameters:
    return parameters(PickerParameters, maxNumOfEndpoints=count)


def test_max_score_picker_takes_the_best():
    """As many as told, best first."""
    a, b, c = candidates = list(pool_of(3))
    assert MaxScorePicker(settings(1), around()).pick(candidates, [1.0, 3.0, 2.0]) == [b]
    assert MaxScorePicker(settings(2), around()).pick(candidates, [1.0, 3.0, 2.0]) == [b, c]
    assert MaxScorePicker(settings(9), around()).pick(candidates, [1.0, 3.0, 2.0]) == [b, c, a]


def test_ties_go_round():
    """To who has fewer unseen picks, then to who was picked longest ago."""
    a, b, c = candidates = list(pool_of(3))
    a.last_pick, b.last_pick, c.last_pick = 3, 2, 1
    picker = MaxScorePicker(settings(1), around())
    assert picker.pick(candidates, [1.0, 1.0, 1.0]) == [c]
    c.unseen[1] = 0.0
    assert picker.pick(candidates, [1.0, 1.0, 1.0]) == [b]
    assert MaxScorePicker(settings(3), around()).pick(candidates, [1.0, 1.0, 1.0]) == [b, a, c]


def test_random_picker_takes_everybody_alike():
    """Totals do not count."""
    candidates = list(pool_of(2))
    picker = RandomPicker(settings(1), around())
    counts = Counter(picker.pick(candidates, [0.0, 9.0])[0] for _ in range(2000))
    assert counts[candidates[0]] == pytest.approx(1000, abs=150)


def test_weighted_picker_takes_in_proportion():
    """Three times the total, three times the chance; without any total everybody alike."""
    candidates = list(pool_of(3))
    picker = WeightedRandomPicker(settings(1), around())
    counts = Counter(picker.pick(candidates, [1.0, 3.0, 0.0])[0] for _ in range(4000))
    assert counts[candidates[1]] == pytest.approx(3000, abs=150)
    assert counts[candidates[2]] == 0
    even = Counter(picker.pick(candidates, [0.0, 0.0, 0.0])[0] for _ in range(3000))
    assert min(even.values()) > 800
