"""`scraped-concurrency-detector`: saturation by the running requests that endpoints report, which is the same for all
pickers of a pool.
"""

from collections.abc import Sequence

from weft.core.config.quantity import check_positive, parse_duration_s
from weft.epp.config.parameters import AtLeastOne, Kind, Parameters
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint


class ScrapedParameters(Parameters, frozen=True, kw_only=True):
    """Number of requests at which an endpoint is full, and the time for which a sent request counts until reports
    include it.
    """

    max_concurrency: AtLeastOne = 100
    metrics_staleness_threshold: str = "2s"
    own_dispatch_window: str = "1s"

    def __post_init__(self) -> None:
        check_positive(
            metricsStalenessThreshold=self.metrics_staleness_threshold,
            ownDispatchWindow=self.own_dispatch_window,
        )


@plugin("scraped-concurrency-detector", Kind.DETECTOR, ScrapedParameters, is_alpha=True)
class ScrapedConcurrencyDetector:
    """Saturation is the number of running and waiting requests divided by the capacity of the stage's endpoints. The
    requests of the whole pool count, because a request in prefill will decode later.

    An endpoint that no longer reports counts with its last report, but adds no capacity. A stage without any reports
    counts as free, as in `utilization-detector`.
    """

    def __init__(self, parameters: ScrapedParameters, around: Surroundings) -> None:
        self._pool = around.pool
        self._max_concurrency = parameters.max_concurrency
        own_s = parse_duration_s(parameters.metrics_staleness_threshold)
        # Not below the period of polls: with a smaller limit every endpoint would count as stale.
        self._max_age_s = max(own_s, around.max_load_age_s)
        self._window_s = parse_duration_s(parameters.own_dispatch_window)

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, _stage: str | None = None
    ) -> float:
        return self._ratio(endpoints, now, 0)

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, _stage: str | None = None
    ) -> float:
        since = now - self._window_s
        sent = {
            ticket_id  # requests whose prefill runs on another endpoint are counted once
            for each in self._pool.ready
            for ticket_id, at in each.unseen.items()
            if at >= since
        }
        return self._ratio(endpoints, now, len(sent))

    def _ratio(self, endpoints: Sequence[Endpoint], now: float, num_sent: int) -> float:
        if not endpoints:
            return 1.0
        num_known = sum(not each.is_stale(now, self._max_age_s) for each in endpoints)
        if not num_known:
            return 0.0
        loads = [each.load for each in self._pool.ready]
        num_requests = sum(load.num_running + load.num_waiting for load in loads) + num_sent
        return num_requests / (num_known * self._max_concurrency)
