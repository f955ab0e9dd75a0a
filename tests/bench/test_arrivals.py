"""When requests leave: weft.bench.arrivals."""

import numpy as np
import pytest

from weft.bench.arrivals import arrival_times, check_traffic
from weft.bench.options import TrafficOptions
from weft.core.errors import ConfigError

NUM = 4000


def intervals(**options):
    rng = np.random.default_rng(7)
    return np.diff(arrival_times(TrafficOptions(**options), NUM, rng), prepend=0.0)


def test_without_a_rate_all_leave_at_once():
    """inf is the default: the server's own limits are what is measured."""
    assert not intervals().any()


def test_a_rate_is_kept_to_the_last_request():
    """Drawn intervals would miss it by a percent or two, and with it the throughput."""
    assert intervals(request_rate=8.0).sum() == pytest.approx(NUM / 8)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_a_gamma_distribution(burstiness):
    """Its coefficient of variation is 1 / sqrt(shape): 1 is a Poisson process, less is in bursts."""
    drawn = intervals(request_rate=8.0, burstiness=burstiness)
    assert drawn.std() / drawn.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


def test_a_poisson_process_has_exponential_intervals():
    """The median of an exponential distribution is ln 2 of its mean."""
    drawn = intervals(request_rate=8.0)
    assert np.median(drawn) / drawn.mean() == pytest.approx(np.log(2), rel=0.08)


def test_endless_burstiness_is_an_even_pace():
    """The limit of the gamma distribution is no distribution."""
    assert intervals(request_rate=8.0, burstiness=float("inf")) == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("strategy", "halfway"), [("linear", (2 + 32) / 2), ("exponential", (2 * 32) ** 0.5)]
)
def test_a_ramp_goes_from_one_rate_to_the_other(strategy, halfway):
    """Request by request, evenly in the rate or in its logarithm."""
    drawn = intervals(
        ramp_up_strategy=strategy,
        ramp_up_start_rps=2.0,
        ramp_up_end_rps=32.0,
        burstiness=float("inf"),
    )
    rates = 1 / drawn
    assert (rates[0], rates[-1]) == pytest.approx((2, 32))
    assert rates[NUM // 2] == pytest.approx(halfway, rel=0.01)


def test_the_seed_decides():
    """A run can be repeated."""
    options = TrafficOptions(request_rate=8.0)
    first, again, other = (
        arrival_times(options, 9, np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"request_rate": 0.0}, "--request-rate"),
        ({"request_rate": float("nan")}, "--request-rate"),
        ({"burstiness": 0.0}, "--burstiness"),
        ({"max_concurrency": 0}, "--max-concurrency"),
        ({"time_limit": 0.0}, "--time-limit"),
        ({"num_warmups": -1}, "--num-warmups"),
        ({"ramp_up_start_rps": 1.0}, "--ramp-up-strategy"),
        ({"ramp_up_strategy": "linear"}, "--ramp-up-start-rps"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 4.0, "ramp_up_end_rps": 2.0},
            "--ramp-up-end-rps",
        ),
        ({"ramp_up_strategy": "linear", "request_rate": 2.0}, "--request-rate"),
    ],
)
def test_a_load_that_cannot_be_is_refused_by_its_flag(options, flag):
    """Before anything is sent."""
    with pytest.raises(ConfigError, match=flag):
        check_traffic(TrafficOptions(**options))
