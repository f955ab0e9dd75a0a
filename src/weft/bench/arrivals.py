"""Computes the times at which requests are sent, in seconds after the start."""

import math

import numpy as np
from numpy.typing import NDArray

from weft.bench.options import TrafficOptions
from weft.core.errors import ConfigError


def check_traffic(options: TrafficOptions) -> None:
    """Raises a `ConfigError` that names the flag, for an impossible load."""
    if not options.request_rate > 0:
        raise ConfigError("--request-rate must be above 0; inf sends all requests at once")
    if not options.burstiness > 0:
        raise ConfigError("--burstiness must be above 0")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        raise ConfigError("--max-concurrency must be at least 1")
    if not options.time_limit > 0:
        raise ConfigError("--time-limit must be above 0 seconds")
    if options.num_warmups < 0:
        raise ConfigError("--num-warmups must be at least 0")
    _check_ramp(options)


def arrival_times(
    options: TrafficOptions, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Returns the send times in seconds after the start, ascending.

    As in vLLM's `get_request` (vllm/benchmarks/serve.py), intervals are drawn from a gamma distribution of shape
    `burstiness` and mean 1/rate. At a constant rate they are then scaled, so that the last request is sent after
    exactly `num_requests` / rate.
    """
    rates = _rates(options, num_requests)
    if math.isinf(options.burstiness):
        intervals = 1 / rates
    else:
        intervals = rng.gamma(options.burstiness, 1 / (rates * options.burstiness))
    times = np.cumsum(intervals)
    if options.ramp_up_strategy is None and times[-1] > 0:
        times *= num_requests / options.request_rate / times[-1]
    return times


def _rates(options: TrafficOptions, num_requests: int) -> NDArray[np.float64]:
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None or start is None or end is None:
        return np.full(num_requests, options.request_rate)
    progress = np.arange(num_requests) / max(num_requests - 1, 1)
    if options.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def _check_ramp(options: TrafficOptions) -> None:
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return
    if not math.isinf(options.request_rate):
        raise ConfigError("--request-rate and --ramp-up-strategy exclude each other")
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if not 0 < start <= end < math.inf:
        raise ConfigError("--ramp-up-start-rps must be above 0, and not above --ramp-up-end-rps")
