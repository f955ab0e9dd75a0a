"""`latency-scorer`: prefers endpoints that are predicted to meet the SLO, and compares them by their headroom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from weft.epp.config.parameters import Kind, NotNegative, Parameters
from weft.epp.decision.cycle import Cycle, LatencyPredictions
from weft.epp.decision.plugin import (
    APPROXIMATE,
    LATENCY,
    LatencyProducer,
    PrefixProducer,
    Surroundings,
    plugin,
)
from weft.epp.pool.endpoint import Endpoint

_NO_RANGE_S: Final = 1e-12
# Number of steps of the score; every endpoint that is compared gets at least one.
_STEPS: Final = 100


class LatencyScorerParameters(Parameters, frozen=True, kw_only=True):
    """Weights of the two latencies, the preferred headroom, and the weights of load and prefix, which are used without
    predictions.
    """

    ttft_weight: NotNegative = 0.8
    tpot_weight: NotNegative = 0.2
    headroom_selection_strategy: Literal["least", "most"] = "least"
    composite_kv_weight: NotNegative = msgspec.field(default=1.0, name="compositeKVWeight")
    composite_queue_weight: NotNegative = 1.0
    composite_prefix_weight: NotNegative = 1.0
    latency_prediction_info_producer_name: LatencyProducer = LATENCY
    prefix_match_info_producer_name: PrefixProducer = APPROXIMATE


@dataclass(frozen=True, slots=True)
class _Room:
    """A candidate and its headroom in seconds. Negative headroom means that the SLO is missed."""

    index: int
    ttft_s: float
    tpot_s: float
    meets: bool
    is_idle: bool


@plugin("latency-scorer", Kind.SCORER, LatencyScorerParameters)
class LatencyScorer:
    """Prefers endpoints that meet the SLO; if none does, endpoints that miss it by the least."""

    def __init__(self, parameters: LatencyScorerParameters, _: Surroundings) -> None:
        self._parameters = parameters
        self._prefers_most = parameters.headroom_selection_strategy == "most"

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns scores by headroom; 0 for endpoints in a worse tier or without a prediction. Without any predictions,
        returns scores by load and cached prefix.
        """
        known = cycle.predictions.get(self._parameters.latency_prediction_info_producer_name)
        rooms = [] if known is None else _rooms(known, candidates)
        if not rooms:
            return self._by_load(cycle, candidates)
        scores = [0.0] * len(candidates)
        compared, is_met = _best_of(rooms)
        self._compare(compared, scores, prefers_most=is_met and self._prefers_most)
        return scores

    def _compare(self, rooms: Sequence[_Room], scores: list[float], *, prefers_most: bool) -> None:
        weight = self._ttft_share(rooms)
        shares = zip(
            _in_range([abs(room.ttft_s) for room in rooms]),
            _in_range([abs(room.tpot_s) for room in rooms]),
            strict=True,
        )
        for room, (ttft, tpot) in zip(rooms, shares, strict=True):
            share = weight * ttft + (1.0 - weight) * tpot
            share = share if prefers_most else 1.0 - share
            scores[room.index] = min(1.0, (int(share * _STEPS + 1e-9) + 1) / _STEPS)

    def _ttft_share(self, rooms: Sequence[_Room]) -> float:
        """Returns the weight of TTFT beside TPOT, 0 to 1. If all endpoints are equal in one of the two latencies, only
        the other one counts.
        """
        parameters = self._parameters
        is_ttft_one = _has_no_range([room.ttft_s for room in rooms])
        is_tpot_one = _has_no_range([room.tpot_s for room in rooms])
        if is_ttft_one != is_tpot_one:
            return 0.0 if is_ttft_one else 1.0
        total = parameters.ttft_weight + parameters.tpot_weight
        return parameters.ttft_weight / total if total else 1.0

    def _by_load(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        parameters = self._parameters
        weights = (
            parameters.composite_kv_weight,
            parameters.composite_queue_weight,
            parameters.composite_prefix_weight,
        )
        total = sum(weights)
        kv, queue, prefix = (each / total for each in weights) if total else (1.0, 0.0, 0.0)
        longest = max(endpoint.expected_waiting for endpoint in candidates)
        match = cycle.prefixes.get(parameters.prefix_match_info_producer_name)
        scores = []
        for endpoint in candidates:
            free = 1.0 - endpoint.load.kv_usage
            short = 1.0 - endpoint.expected_waiting / longest if longest else 1.0
            held = (
                match.held.get(endpoint, 0) / match.num_blocks
                if match and match.num_blocks
                else 0.0
            )
            scores.append(kv * free + queue * short + prefix * held)
        return scores


def _rooms(known: LatencyPredictions, candidates: Sequence[Endpoint]) -> list[_Room]:
    """Returns the headroom of the candidates that have a prediction. Without an SLO, shorter predicted latencies count
    as more headroom.
    """
    wants_any = bool(known.slo)
    rooms = []
    for i, endpoint in enumerate(candidates):
        prediction = known.of.get(endpoint)
        if prediction is None:
            continue
        if wants_any:
            ttft_s, tpot_s = prediction.ttft_headroom_s or 0.0, prediction.tpot_headroom_s or 0.0
        else:
            ttft_s, tpot_s = -prediction.ttft_s, -(prediction.tpot_s or 0.0)
        rooms.append(
            _Room(i, ttft_s, tpot_s, prediction.meets, is_idle=not prediction.num_requests)
        )
    return rooms


def _best_of(rooms: Sequence[_Room]) -> tuple[Sequence[_Room], bool]:
    """Returns the candidates to compare, and True if they have headroom: the candidates that meet all SLOs; if there
    are none, the idle ones, those that meet the TTFT objective, or those that meet the TPOT objective, in this order.
    """
    met = [room for room in rooms if room.meets]
    has_room = [room for room in met if room.ttft_s >= 0.0 and room.tpot_s >= 0.0]
    if has_room:
        return has_room, True
    left = met or rooms
    groups = (
        [room for room in left if room.is_idle],
        [room for room in left if room.ttft_s >= 0.0],
        [room for room in left if room.tpot_s >= 0.0],
    )
    return next(filter(None, groups), left), False


def _has_no_range(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _NO_RANGE_S


def _in_range(values: Sequence[float]) -> list[float]:
    least, most = min(values), max(values)
    if most - least <= _NO_RANGE_S:
        return [0.5] * len(values)
    return [(value - least) / (most - least) for value in values]
