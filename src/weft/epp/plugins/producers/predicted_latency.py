"""`predicted-latency-producer`: predicts a request's latency at each endpoint, with models that learn from earlier
responses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Final

import msgspec

from weft.core.config.quantity import parse_duration_s
from weft.epp.config.parameters import Count, Ignored, Kind, Parameters, Positive
from weft.epp.decision.cycle import Cycle, LatencyPredictions, Prediction, Schedule
from weft.epp.decision.plugin import (
    APPROXIMATE,
    INFLIGHT,
    LATENCY,
    TOKENS,
    InflightProducer,
    PrefixProducer,
    Surroundings,
    plugin,
)
from weft.epp.decision.tickets import ResponseTimes
from weft.epp.latency.limits import StrictestLimits
from weft.epp.latency.predictor import Predictor
from weft.epp.metrics.series import MAX_REQUEST_SERIES, OTHER, PickerMetrics
from weft.epp.plugins.producers.inflight_load import InflightLoad
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.slo import Slo, read_slo

_PREFILL: Final = "prefill"  # the reference's name of the profile, and of the role
_MAX_AMOUNT: Final = 1e9
_NOT_SAMPLED: Final = Ignored(
    "the mean time per token of a response is learned, not the time of each token"
)


class PredictedLatencyParameters(Parameters, frozen=True, kw_only=True):
    """Settings of the latency predictor. There is no setting for a prediction server, because the models run in the
    picker.
    """

    needs = (TOKENS,)
    # True: predict TTFT and TPOT; False: predict the duration of whole responses.
    streaming_mode: bool = False
    slo_buffer_factor: Positive = 1.0
    # A number is in nanoseconds.
    context_ttl: str | int = msgspec.field(default="5m", name="contextTTL")
    predict_in_produce: bool = True  # False: learn without predicting
    endpoint_role_label: str = ""
    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE
    in_flight_load_producer_name: InflightProducer = INFLIGHT
    use_encoder_cache_features: bool = False
    sampling_mean: Annotated[Positive | None, _NOT_SAMPLED] = None
    max_decode_token_samples_for_prediction: Annotated[Count | None, _NOT_SAMPLED] = None

    def __post_init__(self) -> None:
        if self.context_ttl_s <= 0:
            raise ValueError(f"contextTTL must be more than 0, got {self.context_ttl!r}")
        if self.use_encoder_cache_features:
            raise ValueError(
                "useEncoderCacheFeatures is refused: the models have no features of encoder caches"
            )

    @property
    def context_ttl_s(self) -> float:
        """Seconds for which the producer keeps a request that gets no response."""
        ttl = self.context_ttl
        return ttl * 1e-9 if isinstance(ttl, int) else parse_duration_s(ttl)


@dataclass(slots=True)
class _Open:
    """A running request, and the features at its decision. The models learn the measured times with these features."""

    placed: float
    target: Endpoint
    prefill: Endpoint  # the endpoint of the prefill; the destination if prefill is not separate
    features: Sequence[float]  # features of the prefill endpoint
    decode_features: Sequence[float]
    slo: Slo
    predicted_ttft_s: float | None
    predicted_tpot_s: float | None
    labels: tuple[str, ...]


class _Account:
    """Writes the metric series of the latency predictor."""

    def __init__(self, metrics: PickerMetrics, name: str) -> None:
        self._names = metrics.model_names
        self._series = metrics.make_latency_series()
        self._plugin = (name, LATENCY)
        self._known: set[tuple[str, ...]] = set()

    def labels(self, cycle: Cycle) -> tuple[str, ...]:
        """Returns the labels of a request's series. The number of label sets is limited: a thousand names by a thousand
        would be a million series.
        """
        labels = (*self._plugin, self._names(cycle.request.model), self._names(cycle.model))
        if labels not in self._known:
            if len(self._known) >= MAX_REQUEST_SERIES:
                return (*self._plugin, OTHER, OTHER)
            self._known.add(labels)
        return labels

    def predicted(self, cycle: Cycle, first_s: float, next_s: float) -> None:
        """Records how long the computation of the predictions took."""
        labels = self.labels(cycle)
        self._series.ttft_prediction.labels(*labels).observe(first_s)
        self._series.tpot_prediction.labels(*labels).observe(next_s)
        self._last(labels, "ttft_prediction_duration", first_s)
        self._last(labels, "tpot_prediction_duration", next_s)

    def came(self, opened: _Open, first_s: float, next_s: float | None) -> None:
        """Records the measured latencies of a response, the predictions, and whether the SLOs were met."""
        labels, wanted = opened.labels, opened.slo
        if (ttft_s := opened.predicted_ttft_s) is not None:
            self._series.predicted_ttft.labels(*labels).observe(ttft_s)
            self._last(labels, "predicted_ttft", ttft_s)
        if (tpot_s := opened.predicted_tpot_s) is not None:
            self._series.predicted_tpot.labels(*labels).observe(tpot_s)
            self._last(labels, "predicted_tpot", tpot_s)
        for name, seconds, limit_s in (
            ("ttft", first_s, wanted.ttft_s),
            ("tpot", next_s, wanted.tpot_s),
        ):
            if seconds is None:
                continue
            self._last(labels, name, seconds)
            if limit_s is not None:
                is_missed = seconds > limit_s
                self._series.violations.labels(*labels, name).inc(is_missed)
                self._last(labels, f"{name}_slo_violation", float(is_missed))

    def _last(self, labels: tuple[str, ...], name: str, value: float) -> None:
        self._series.last.labels(*labels, name).set(value)


@plugin(LATENCY, Kind.PRODUCER, PredictedLatencyParameters)
class PredictedLatency:
    """Predicts latencies at each decision, and learns from the first tokens and the ends of responses."""

    def __init__(self, parameters: PredictedLatencyParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._name = around.name
        self._clock = around.clock
        self._pool = around.pool
        self._inflight: InflightLoad = around.plugin(parameters.in_flight_load_producer_name)
        self._ttl_s = parameters.context_ttl_s
        self.ttft = Predictor(num_features=6)
        self.tpot = Predictor(num_features=4)
        self._limits = StrictestLimits()
        self._open: dict[int, _Open] = {}  # by ticket, oldest first
        # Features of the decision that is being made; no step of a decision awaits, so there is only one at a time.
        self._seen_by = 0
        self._seen: Mapping[Endpoint, tuple[Sequence[float], Sequence[float]]] = {}
        self._account = _Account(around.metrics, around.name)
        around.pool.join_by(parameters.endpoint_role_label)
        around.pool.on_left(self._forget)

    def produce(self, cycle: Cycle) -> None:
        """Stores a prediction for every candidate with enough samples. Raises `Refused` for an SLO that cannot be
        read.
        """
        self._drop_old()
        slo = read_slo(cycle.request.headers)
        # The features for learning are taken now: after the pick, the request itself counts as running.
        self._seen_by = cycle.ticket_id
        self._seen = {
            each: (self._features(cycle, each), self._decode_features(each))
            for each in cycle.candidates
        }
        found: dict[Endpoint, Prediction] = {}
        if self._parameters.predict_in_produce:
            started = perf_counter()
            first = self._predict_first()
            between = perf_counter()
            then = self._predict_next() if self._parameters.streaming_mode else {}
            self._account.predicted(cycle, between - started, perf_counter() - between)
            for endpoint, first_s in first.items():
                next_s = then.get(endpoint)
                found[endpoint] = self._prediction(cycle, endpoint, slo, first_s, next_s)
        cycle.predictions[self._name] = LatencyPredictions(slo, found)

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Stores the features of a request at its decision; the models learn the measured times with them."""
        known = cycle.predictions.get(self._name)
        target = schedule.target
        apart = schedule.picks.get(_PREFILL)
        prefill = apart[0] if apart else target
        is_seen = target in self._seen and prefill in self._seen
        if known is None or self._seen_by != cycle.ticket_id or not is_seen:
            return
        first, then = known.of.get(prefill), known.of.get(target)
        self._open[cycle.ticket_id] = _Open(
            placed=cycle.now, target=target, prefill=prefill,
            features=self._seen[prefill][0], decode_features=self._seen[target][1],
            slo=known.slo,
            predicted_ttft_s=None if first is None else first.ttft_s,
            predicted_tpot_s=None if then is None else then.tpot_s,
            labels=self._account.labels(cycle),
        )  # fmt: skip
        self._limits.add(target, cycle.ticket_id, known.slo.tpot_s)

    def first_token(self, ticket_id: int) -> None:
        """Learns the time to the first token; the end of the response does not matter."""
        opened = self._open.get(ticket_id)
        if opened is not None and self._parameters.streaming_mode:
            seconds = self._clock() - opened.placed
            self._learn(self.ttft, opened.prefill, opened.features, seconds)

    def timed(self, times: ResponseTimes) -> None:
        """Learns from a complete response, and records its predictions and missed SLOs."""
        opened = self._open.get(times.ticket_id)
        if opened is None:
            return
        if self._parameters.streaming_mode and times.is_streaming:
            first_s, next_s = times.ttft_s, times.tpot_s
        elif self._parameters.streaming_mode:
            return  # the response came in one piece, so there is no TPOT
        else:
            first_s, next_s = times.ended - times.arrived, None
            seconds = times.ended - opened.placed
            self._learn(self.ttft, opened.prefill, opened.features, seconds)
        if next_s is not None:
            self._learn(self.tpot, opened.target, opened.decode_features, next_s)
        self._account.came(opened, first_s, next_s)

    def ended(self, ticket_id: int) -> None:
        """Drops a finished request."""
        opened = self._open.pop(ticket_id, None)
        if opened is not None:
            self._limits.remove(opened.target, ticket_id)

    def __len__(self) -> int:
        """Number of requests whose responses the producer follows."""
        return len(self._open)

    def _learn(
        self, predictor: Predictor, endpoint: Endpoint, features: Sequence[float], seconds: float
    ) -> None:
        predictor.learn(endpoint, self._role(endpoint), features, seconds)

    def _predict_first(self) -> dict[Endpoint, float]:
        found = {}
        for each, (features, _) in self._seen.items():
            seconds = self.ttft.predict(each, self._role(each), features)
            if seconds is not None:
                found[each] = seconds
        return found

    def _predict_next(self) -> dict[Endpoint, float]:
        found = {}
        for each, (_, features) in self._seen.items():
            role = self._role(each)
            # A prefill endpoint generates no tokens.
            seconds = None if role == _PREFILL else self.tpot.predict(each, role, features)
            if seconds is not None:
                found[each] = seconds
        return found

    def _prediction(
        self,
        cycle: Cycle,
        endpoint: Endpoint,
        slo: Slo,
        first_s: float,
        next_s: float | None,
    ) -> Prediction:
        buffer = self._parameters.slo_buffer_factor
        first_headroom_s = next_headroom_s = None
        if slo.ttft_s is not None:
            waited_s = cycle.now - cycle.arrived
            first_headroom_s = slo.ttft_s * buffer - waited_s - first_s
        limits = (slo.tpot_s, self._limits.strictest(endpoint))
        limit_s = min((limit for limit in limits if limit is not None), default=None)
        if next_s is not None and limit_s is not None:
            next_headroom_s = limit_s * buffer - next_s
        return Prediction(
            ttft_s=first_s, tpot_s=next_s, ttft_headroom_s=first_headroom_s,
            tpot_headroom_s=next_headroom_s, num_requests=self._inflight.num_requests(endpoint),
        )  # fmt: skip

    def _features(self, cycle: Cycle, endpoint: Endpoint) -> Sequence[float]:
        """Returns the features for the time to first token: the prompt, and the work that is queued before it."""
        uncached = cycle.num_uncached_tokens(
            endpoint, self._parameters.prefix_match_info_producer_name
        )
        return (
            1.0,
            _log(uncached / 100),
            _log((uncached + self._inflight.num_tokens(endpoint)) / 100),
            _log(endpoint.expected_waiting),
            _log(self._num_requests(endpoint)),
            _log(10 * endpoint.load.kv_usage),
        )

    def _decode_features(self, endpoint: Endpoint) -> Sequence[float]:
        """Returns the features for the time per output token: the number of concurrent requests, and the KV cache that
        a step reads.
        """
        return (
            1.0,
            _log(self._num_requests(endpoint)),
            _log(self._inflight.num_tokens(endpoint) / 100),
            _log(10 * endpoint.load.kv_usage),
        )

    def _num_requests(self, endpoint: Endpoint) -> int:
        """Returns the number of running requests at the endpoint: the picker's own count or the reported number,
        whichever is larger, because other pickers may send requests too.
        """
        reported = endpoint.load.num_running + endpoint.expected_waiting
        return max(reported, self._inflight.num_requests(endpoint))

    def _role(self, endpoint: Endpoint) -> str:
        return endpoint.labels.get(self._parameters.endpoint_role_label, "")

    def _drop_old(self) -> None:
        """Drops requests without any event for too long: their times would be meaningless."""
        oldest = self._clock() - self._ttl_s
        while self._open:
            ticket_id, opened = next(iter(self._open.items()))
            if opened.placed >= oldest:
                return
            self.ended(ticket_id)

    def _forget(self, endpoint: Endpoint) -> None:
        role = self._role(endpoint)
        is_last = all(self._role(each) != role for each in self._pool)
        for predictor in (self.ttft, self.tpot):
            predictor.forget(endpoint)
            if is_last:
                predictor.forget_role(role)
        # Responses that are still running there are not learned: a late response must not add the removed endpoint
        # again.
        leaving = [
            ticket_id
            for ticket_id, opened in self._open.items()
            if endpoint in (opened.target, opened.prefill)
        ]
        for ticket_id in leaving:
            self.ended(ticket_id)
        self._limits.forget(endpoint)
        self._seen = {}


def _log(amount: float) -> float:
    """Returns log(1 + amount). A non-finite amount is replaced by a finite one, because servers may report any
    number.
    """
    return math.log1p(min(amount, _MAX_AMOUNT)) if amount > 0.0 else 0.0  # also excludes NaN
