"""Records of routing decisions for later look-up: the candidates, the endpoints that each filter removed, and every
score.
"""

import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from weft.epp.decision.cycle import Cycle, LatencyPredictions, PrefixMatch, ProfileRun, Schedule
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.slo import Slo
from weft.epp.request.values import Refused


class FilterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints that one filter removed."""

    name: str
    removed: list[str]


class ScoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A scorer's score of one endpoint."""

    raw: float
    weighted: float


class ScorerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one scorer."""

    name: str
    weight: float
    scores: dict[str, ScoreRecord]


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one scheduling profile."""

    name: str
    candidates: list[str]
    filters: list[FilterRecord]
    scorers: list[ScorerRecord]
    totals: dict[str, float]
    picked: list[str]
    runner_up: str | None


class LatencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted latencies at one endpoint, and the headroom to the SLO. Negative headroom means that the SLO is
    missed.
    """

    ttft_ms: float
    tpot_ms: float | None
    ttft_headroom_ms: float | None
    tpot_headroom_ms: float | None


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A routing decision as it is written in JSON. It contains no prompt text."""

    request_id: str
    time: float  # Unix time
    duration_ms: float
    path: str
    model: str
    target_model: str
    priority: int
    status: int  # 200, or the status of the refusal
    message: str
    endpoints: list[str]
    stale: list[str]  # candidates whose load was unknown or too old
    profiles: list[ProfileRecord]
    set_headers: dict[str, str]
    num_prompt_tokens: int
    cached_tokens: dict[str, dict[str, int]]  # by prefix producer, then by endpoint
    slo_ms: dict[str, float] = {}  # ttft and tpot, if the request has them
    latency: dict[str, dict[str, LatencyRecord]] = {}  # by producer, then by endpoint
    # Endpoints that refused connections, and were therefore not candidates.
    unreachable: list[str] = []


@dataclass(frozen=True, slots=True)
class RetainedPredictions:
    """Predictions in compact form: four numbers per endpoint, NaN if missing. A picker may keep a thousand decisions
    about hundreds of endpoints.
    """

    slo: Slo
    endpoints: tuple[Endpoint, ...]
    numbers_ms: "array[float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """A decision in raw form. It is converted to a record only on request, perhaps on another thread.

    The object refers neither to the cycle nor to the request, whose prompts would fill the memory, nor to an exception,
    whose traceback refers to them.
    """

    request_id: str
    at: float
    duration_s: float
    path: str
    model: str
    target_model: str
    priority: int
    runs: Sequence[ProfileRun]
    prefixes: Mapping[str, PrefixMatch]
    latency: Mapping[str, RetainedPredictions]
    num_prompt_tokens: int
    request_headers: Mapping[str, str]
    schedule: Schedule | None  # None if the request was refused
    status: int
    message: str  # reason of the refusal
    stale: Sequence[Endpoint]
    unreachable: Sequence[Endpoint]

    @property
    def num_mentions(self) -> int:
        """Maximum number of times that the record names an endpoint, which bounds the size of the record."""
        return sum(
            len(run.candidates) * (3 + len(run.after_filters) + len(run.scores))
            for run in self.runs
        )


# Maximum characters kept of each text from a client: a thousand long names would fill the memory.
_MAX_CHARS: Final = 256


class DecisionRing:
    """The most recent decisions, by request id."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, PastDecision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(
        self,
        cycle: Cycle,
        outcome: Schedule | Refused,
        *,
        duration_s: float,
        stale: Sequence[Endpoint],
    ) -> None:
        """Stores a decision; a repeated request id replaces the earlier one."""
        if not self._capacity:
            return
        request_id = cycle.request.request_id
        refused = outcome if isinstance(outcome, Refused) else None
        self._entries[request_id] = PastDecision(
            request_id=request_id,
            at=time.time(),
            duration_s=duration_s,
            path=cycle.request.path[:_MAX_CHARS],
            model=cycle.request.model[:_MAX_CHARS],
            target_model=cycle.model[:_MAX_CHARS],
            priority=cycle.priority,
            runs=cycle.runs,
            prefixes=cycle.prefixes,
            latency={name: _retained(known) for name, known in cycle.predictions.items()},
            num_prompt_tokens=cycle.num_prompt_tokens,
            request_headers=cycle.request_headers,
            schedule=None if isinstance(outcome, Refused) else outcome,
            status=refused.status if refused else 200,
            message=refused.message if refused else "",
            stale=stale,
            unreachable=cycle.unreachable,
        )
        self._entries.move_to_end(request_id)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def get(self, request_id: str) -> DecisionRecord | None:
        """Returns the record of a request's decision; None if there is none, or none any more."""
        found = self.find(request_id)
        return None if found is None else to_record(found)

    def find(self, request_id: str) -> PastDecision | None:
        """Returns a request's decision in raw form; None if there is none, or none any more."""
        return self._entries.get(request_id)

    def newest(self, limit: int) -> list[PastDecision]:
        """Returns the last `limit` decisions in raw form, newest first."""
        return list(islice(reversed(self._entries.values()), limit))


def to_record(entry: PastDecision) -> DecisionRecord:
    """Converts a decision to its JSON form. With thousands of endpoints, this takes long."""
    schedule = entry.schedule
    return DecisionRecord(
        request_id=entry.request_id,
        time=entry.at,
        duration_ms=entry.duration_s * 1000,
        path=entry.path,
        model=entry.model,
        target_model=entry.target_model,
        priority=entry.priority,
        status=entry.status,
        message=entry.message,
        endpoints=_named(schedule.picks[schedule.primary]) if schedule else [],
        stale=_named(entry.stale),
        profiles=[_to_profile(run) for run in entry.runs],
        set_headers={**schedule.set_headers, **entry.request_headers} if schedule else {},
        num_prompt_tokens=entry.num_prompt_tokens,
        cached_tokens=_cached(entry),
        slo_ms=slo_ms(entry),
        latency={
            name: {
                each.host_port: predicted(retained, i) for i, each in enumerate(retained.endpoints)
            }
            for name, retained in entry.latency.items()
        },
        unreachable=_named(entry.unreachable),
    )


def _retained(known: LatencyPredictions) -> RetainedPredictions:
    numbers = array("d")
    for each in known.of.values():
        for seconds in (each.ttft_s, each.tpot_s, each.ttft_headroom_s, each.tpot_headroom_s):
            numbers.append(math.nan if seconds is None else seconds * 1000)
    return RetainedPredictions(known.slo, tuple(known.of), numbers)


def runner_up(run: ProfileRun) -> Endpoint | None:
    """Returns the endpoint with the best score after the picked endpoint; None if there is no other."""
    first = run.picked[0] if run.picked else None
    others = [
        (total, each)
        for each, total in zip(run.scored, run.totals, strict=False)
        if each is not first
    ]
    return max(others, key=lambda pair: pair[0])[1] if others else None


def weighted(raw: float, weight: float) -> float:
    """Returns the contribution of a score to the total: the score, clamped to 0..1, times the weight."""
    return min(max(raw, 0.0), 1.0) * weight


def slo_ms(entry: PastDecision) -> dict[str, float]:
    """Returns the SLOs of the request in milliseconds; empty if no predictor read them."""
    for retained in entry.latency.values():  # all predictions of one request
        wanted = (("ttft", retained.slo.ttft_s), ("tpot", retained.slo.tpot_s))
        return {name: round(each * 1000, 3) for name, each in wanted if each is not None}
    return {}


def predicted(retained: RetainedPredictions, index: int) -> LatencyRecord:
    """Returns the prediction for the endpoint at `index`."""
    found = retained.numbers_ms[4 * index : 4 * index + 4]
    ttft, *others = (None if math.isnan(each) else round(each, 3) for each in found)
    return LatencyRecord(
        ttft_ms=ttft or 0.0, tpot_ms=others[0],
        ttft_headroom_ms=others[1], tpot_headroom_ms=others[2],
    )  # fmt: skip


def _cached(entry: PastDecision) -> dict[str, dict[str, int]]:
    total = entry.num_prompt_tokens
    return {
        name: {each.host_port: match.num_tokens(each, total) for each in match.held}
        for name, match in entry.prefixes.items()
    }


def _to_profile(run: ProfileRun) -> ProfileRecord:
    names, second = _named(run.scored), runner_up(run)
    return ProfileRecord(
        name=run.profile,
        candidates=_named(run.candidates),
        filters=_filters(run),
        scorers=[
            ScorerRecord(name=name, weight=weight, scores=_scores(names, scores, weight))
            for name, weight, scores in run.scores
        ],
        totals=dict(zip(names, run.totals, strict=False)),
        picked=_named(run.picked),
        runner_up=None if second is None else second.host_port,
    )


def _filters(run: ProfileRun) -> list[FilterRecord]:
    records, before = [], _named(run.candidates)
    for name, left in run.after_filters:
        after = dict.fromkeys(_named(left))
        removed = [endpoint for endpoint in before if endpoint not in after]
        records.append(FilterRecord(name=name, removed=removed))
        before = list(after)
    return records


def _scores(names: list[str], scores: list[float], weight: float) -> dict[str, ScoreRecord]:
    return {
        name: ScoreRecord(raw=raw, weighted=weighted(raw, weight))
        for name, raw in zip(names, scores, strict=True)
    }


def _named(endpoints: Sequence[Endpoint]) -> list[str]:
    return [endpoint.host_port for endpoint in endpoints]
