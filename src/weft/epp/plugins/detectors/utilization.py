"""`utilization-detector`: saturation by queue length and KV cache usage, relative to thresholds."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from weft.core.config.quantity import parse_duration_s
from weft.epp.config.parameters import AtLeastOne, Kind, NotNegative, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint


class UtilizationParameters(Parameters, frozen=True, kw_only=True):
    """Queue length and KV cache usage at which an endpoint is full."""

    queue_depth_threshold: AtLeastOne = 5
    kv_cache_util_threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    metrics_staleness_threshold: str | None = None  # None: the picker's limit
    headroom: NotNegative = 0.0

    def __post_init__(self) -> None:
        text = self.metrics_staleness_threshold
        if text is not None and parse_duration_s(text) <= 0:
            raise ValueError(f"must be more than 0, got {text!r}")


@plugin("utilization-detector", (Kind.DETECTOR, Kind.FILTER), UtilizationParameters)
class UtilizationDetector:
    """An endpoint's saturation is the larger of queue length and KV cache usage, each relative to its threshold; the
    pool's saturation is the mean over the endpoints.

    Endpoints without reports are left out. A pool without reports counts as free: a picker whose polls fail must not
    refuse requests of healthy servers.
    """

    def __init__(self, parameters: UtilizationParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        text = parameters.metrics_staleness_threshold
        own = 0.0 if text is None else parse_duration_s(text)
        # Not below the period of polls: with a smaller limit every endpoint would count as stale.
        self._max_age_s = max(own, surroundings.max_load_age_s)

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, _stage: str | None = None
    ) -> float:
        return self._mean(endpoints, now, counts_unseen=False)

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, _stage: str | None = None
    ) -> float:
        return self._mean(endpoints, now, counts_unseen=True)

    def _mean(self, endpoints: Sequence[Endpoint], now: float, *, counts_unseen: bool) -> float:
        if not endpoints:
            return 1.0
        total, num_known = 0.0, 0
        oldest, depth = now - self._max_age_s, self._parameters.queue_depth_threshold
        usage = self._parameters.kv_cache_util_threshold
        # Without calls of methods: this runs for each request, and a pool may have a thousand endpoints
        for each in endpoints:
            loaded_at = each.loaded_at
            if loaded_at is not None and loaded_at + each.rest_s >= oldest:
                load = each.load
                num_waiting = load.num_waiting + (len(each.unseen) if counts_unseen else 0)
                queue, kv = num_waiting / depth, load.kv_usage / usage
                total += max(queue, kv)
                num_known += 1
        return total / num_known if num_known else 0.0

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose load is known and below the thresholds; all of them if none is."""
        limit = 1.0 + self._parameters.headroom
        passing = [
            each
            for each in candidates
            if not each.is_stale(cycle.now, self._max_age_s)
            and self._ratio(each, each.load.num_waiting) <= limit
        ]
        return passing or candidates

    def _ratio(self, endpoint: Endpoint, num_waiting: int) -> float:
        return max(
            num_waiting / self._parameters.queue_depth_threshold,
            endpoint.load.kv_usage / self._parameters.kv_cache_util_threshold,
        )
