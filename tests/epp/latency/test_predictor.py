import math
import random

import pytest

from weft.epp.latency.limits import StrictestLimits
from weft.epp.latency.predictor import MIN_SAMPLES, LatencyModel, Predictor
from weft.epp.latency.regression import LeastSquares


def test_least_squares_finds_the_line():
    """From samples alone, in any order."""
    chance, line = random.Random(1), LeastSquares(3)
    for _ in range(200):
        x, y = chance.uniform(0, 5), chance.uniform(0, 5)
        line.learn([1.0, x, y], 2.0 + 3.0 * x - 0.5 * y)
    assert line.predict([1.0, 10.0, 4.0]) == pytest.approx(30.0, rel=0.01)


def test_old_samples_are_forgotten():
    """An endpoint that has become ten times as slow is known as that after a hundred responses."""
    model = LatencyModel(1)
    for seconds in [0.1] * 500 + [1.0] * 100:
        model.learn([1.0], seconds)
    assert model.expected([1.0]) > 0.3


def test_what_no_sample_shows_for_long_is_not_believed_blindly():
    """Ten thousand equal samples, then one that differs: no weight runs away."""
    line = LeastSquares(2)
    for _ in range(10_000):
        line.learn([1.0, 0.0], 1.0)
    line.learn([1.0, 1.0], 1.5)
    assert abs(line.predict([1.0, 1.0])) < 2
    assert line.predict([1.0, 0.0]) == pytest.approx(1.0, abs=0.3)


def test_nonsense_ends_in_a_new_beginning():
    """A sample that leaves the range of a float costs what was learnt, and nothing after it."""
    line = LeastSquares(2)
    line.learn([1.0, 1e200], 1e200)
    for _ in range(50):
        line.learn([1.0, 2.0], 5.0)
    assert line.predict([1.0, 2.0]) == pytest.approx(5.0, abs=0.1)


def test_nine_of_ten_stay_below_what_is_predicted():
    """However they are spread."""
    chance, model = random.Random(1), LatencyModel(2)
    below = []
    for number in range(3000):
        x = chance.uniform(0, 3)
        seconds = math.exp(0.5 * x) * chance.lognormvariate(0, 0.5)
        if number >= 500:
            below.append(seconds <= model.predict([1.0, x]))
        model.learn([1.0, x], seconds)
    assert sum(below) / len(below) == pytest.approx(0.9, abs=0.02)


def test_few_samples_are_joined_by_those_of_the_role():
    """And with too few of all there is no prediction."""
    predictor = Predictor(1)
    for _ in range(MIN_SAMPLES - 1):
        predictor.learn("a", "decode", [1.0], 0.5)
    assert predictor.predict("a", "decode", [1.0]) is None
    predictor.learn("b", "decode", [1.0], 0.5)
    assert predictor.predict("c", "decode", [1.0]) == pytest.approx(0.5, rel=0.2)
    assert predictor.predict("c", "prefill", [1.0]) is None
    predictor.forget_role("decode")
    assert predictor.predict("c", "decode", [1.0]) is None


def test_the_strictest_limit_is_that_of_who_is_there():
    """It goes with its request, or with the endpoint."""
    limits = StrictestLimits()
    for ticket_id, limit_s in ((1, 0.3), (2, 0.1), (3, 0.2), (4, None)):
        limits.add("a", ticket_id, limit_s)
    assert limits.strictest("a") == 0.1
    limits.remove("a", 2)
    limits.remove("a", 4)
    assert limits.strictest("a") == 0.2
    limits.forget("a")
    limits.remove("a", 3)
    assert limits.strictest("a") is None
