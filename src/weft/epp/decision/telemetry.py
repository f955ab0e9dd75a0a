"""Updates the metric series of requests in the picker."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from statistics import fmean, pstdev

from prometheus_client import Counter, Gauge

from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.running import RunningEstimate
from weft.epp.decision.tickets import Ending, Ticket
from weft.epp.metrics.rows import Rows
from weft.epp.metrics.series import MAX_REQUEST_SERIES, OTHER, PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Refused

_Labels = tuple[str, str, str, str]
_Place = tuple[str, str, str]  # name, namespace and port of an endpoint
_MAX_SERIES = MAX_REQUEST_SERIES
# Time after which the series of a removed endpoint are deleted: every scraper has read them by then.
KEEP_LEFT_S = 300.0


class _Series:
    """The metric series of one set of label values, cached because a look-up costs more than an observation."""

    __slots__ = ("input_tokens", "requests", "size")

    def __init__(self, metrics: PickerMetrics, labels: _Labels) -> None:
        self.requests = metrics.request.labels(*labels)
        self.size = metrics.request_size.labels(*labels)
        self.input_tokens = metrics.input_tokens.labels(*labels)


class _ResponseSeries:
    """Metric series of followed responses. They exist only if responses are followed: otherwise all of them would read
    zero.
    """

    __slots__ = ("cached", "duration", "itl", "ntpot", "output", "running", "size", "tpot", "ttft")

    def __init__(self, metrics: PickerMetrics, labels: _Labels) -> None:
        self.running = metrics.running.labels(*labels)
        self.duration = metrics.request_duration.labels(*labels)
        self.size = metrics.response_size.labels(*labels)
        self.cached = metrics.cached_tokens.labels(*labels)
        self.output = metrics.output_tokens.labels(*labels)
        self.ntpot = metrics.ntpot.labels(*labels)
        self.tpot = metrics.streaming_tpot.labels(*labels)
        self.itl = metrics.streaming_itl.labels(*labels)
        self.ttft = {
            is_streaming: metrics.ttft.labels(*labels, str(is_streaming).lower())
            for is_streaming in (False, True)
        }


class _Attempts:
    """Numbers of decisions by endpoint. The series of a removed endpoint is deleted after a while."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._labels: dict[_Place, set[tuple[str, ...]]] = {}
        self._left_at: dict[_Place, float] = {}
        self.of = lru_cache(_MAX_SERIES)(self._of)

    def _of(self, model: str, target: Endpoint) -> Counter:
        place = _place(target)
        labels = ("success", model, *place)
        self._labels.setdefault(place, set()).add(labels)
        return self._counter.labels(*labels)

    def keep(self, endpoints: Sequence[Endpoint], now: float) -> None:
        """Keeps the series of these endpoints; deletes the series of endpoints that left long enough ago."""
        left = self._labels.keys() - {_place(endpoint) for endpoint in endpoints}
        self._left_at = {place: self._left_at.get(place, now) for place in left}
        for place, left_at in self._left_at.items():
            if now - left_at >= KEEP_LEFT_S:
                for labels in self._labels.pop(place):
                    self._counter.remove(*labels)
                self.of.cache_clear()


def _place(endpoint: Endpoint) -> _Place:
    spec = endpoint.spec
    return spec.name, spec.namespace, str(spec.port)


class RequestMetrics:
    """Updates the series of requests, and limits the number of label values. `follows` is True if the end of every
    response is reported.
    """

    def __init__(self, metrics: PickerMetrics, *, follows: bool) -> None:
        self._metrics = metrics
        self._follows = follows
        self._of = lru_cache(_MAX_SERIES)(partial(_Series, metrics))
        self._response = lru_cache(_MAX_SERIES)(partial(_ResponseSeries, metrics))
        self._attempts = _Attempts(metrics.scheduler_attempts)
        self._running = None if follows else RunningEstimate(metrics.running)
        self._known_labels: set[_Labels] = set()
        self._saturation = Rows(metrics.pool_saturation)
        self._queues = Rows(metrics.per_endpoint_queue_size)

    def labels(self, cycle: Cycle) -> _Labels:
        """Returns the values of the labels that every request series has."""
        names = self._metrics.model_names
        priority = str(cycle.priority)
        labels = (
            names(cycle.request.model),
            names(cycle.model),
            self._metrics.fairness_ids(cycle.fairness_id),
            priority,
        )
        if labels not in self._known_labels:
            # The limit is on combinations: a thousand values of each of two labels would be a million series.
            if len(self._known_labels) >= MAX_REQUEST_SERIES:
                return (OTHER, OTHER, OTHER, priority)
            self._known_labels.add(labels)
        return labels

    def rewritten(self, rewrite: str, model: str, target: str) -> None:
        """Counts a model rewrite."""
        names = self._metrics.model_names
        self._metrics.rewrites.labels(rewrite, names(model), names(target)).inc()

    def decided(self, cycle: Cycle, outcome: Schedule | Refused, duration_s: float) -> None:
        """Records a decision for an endpoint or a refusal."""
        metrics, labels = self._metrics, self.labels(cycle)
        series = self._of(labels)
        series.requests.inc()
        series.size.observe(cycle.request.num_body_bytes)
        metrics.scheduler_duration.observe(duration_s)
        if isinstance(outcome, Refused):
            metrics.request_error.labels(*labels, outcome.word).inc()
            metrics.scheduler_attempts.labels("failure", labels[1], "", "", "").inc()
            return
        if self._running is not None:
            self._running.sent(labels, cycle.now)
            if cycle.num_prompt_tokens:
                series.input_tokens.observe(cycle.num_prompt_tokens)
        self._attempts.of(labels[1], outcome.target).inc()

    def opened(self, ticket: Ticket) -> None:
        """Counts a request that was sent on and whose response is followed."""
        self._response(ticket.labels).running.inc()

    def next_piece(self, ticket: Ticket, gap_s: float) -> None:
        """Records the time between two pieces of a streamed response."""
        self._response(ticket.labels).itl.observe(gap_s)

    def ended(self, ticket: Ticket, ending: Ending, now: float) -> None:
        """Records the end of a request whose response was followed."""
        series, usage = self._response(ticket.labels), ticket.usage
        series.running.dec()
        duration_s = now - ticket.started
        if num_input := usage.num_prompt_tokens or ticket.num_prompt_tokens:
            self._of(ticket.labels).input_tokens.observe(num_input)
        if ending is Ending.UNFOLLOWED:
            return
        if ending is not Ending.NATURAL or ticket.status != 200:
            code = "ModelServerError" if ticket.status != 200 else str(ending)
            self._metrics.request_error.labels(*ticket.labels, code).inc()
            return
        series.duration.observe(duration_s)
        series.size.observe(ticket.num_body_bytes)
        if usage.num_cached_tokens is not None:
            series.cached.observe(usage.num_cached_tokens)
        num_output = usage.num_completion_tokens or 0
        if num_output:
            series.output.observe(num_output)
            series.ntpot.observe(duration_s / num_output)
        if ticket.first_token_at is None:
            return
        series.ttft[ticket.is_streaming].observe(ticket.first_token_at - ticket.started)
        if ticket.is_streaming and num_output > 1:
            series.tpot.observe((now - ticket.first_token_at) / (num_output - 1))

    def pool(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        *,
        num_stale: int,
        detector: str,
        saturation: Mapping[str, float],
        now: float,
    ) -> None:
        """Sets the gauges that describe the pool."""
        metrics = self._metrics
        self._attempts.keep(endpoints, now)
        num_ready = sum(not endpoint.is_refusing for endpoint in endpoints)
        metrics.ready_endpoints.labels(name).set(num_ready)
        metrics.stale_endpoints.labels(detector).set(num_stale)
        self._saturation.show({(name, stage): value for stage, value in saturation.items()})
        loads = [endpoint.load for endpoint in endpoints]
        if self._running is not None:
            num_unseen = sum(len(endpoint.unseen) for endpoint in endpoints)
            reported = sum(load.num_waiting + load.num_running for load in loads)
            self._running.show(reported + num_unseen, now)
        spreads: list[tuple[tuple[Gauge, Gauge], list[float]]] = [
            (metrics.kv_usage, [load.kv_usage for load in loads]),
            (metrics.queue_size, [load.num_waiting for load in loads]),
            (metrics.running_requests, [load.num_running for load in loads]),
        ]
        for (average, deviation), values in spreads:
            average.labels(name).set(fmean(values) if values else 0.0)
            deviation.labels(name).set(pstdev(values) if values else 0.0)
        self._queues.show({(name, each.spec.name): each.load.num_waiting for each in endpoints})
