"""Workers of different speed in virtual time, behind the picker's own director: what SLOs are worth.

The same requests come to the same workers for every configuration; only where they go differs. Nothing
is timed, so a seed always says the same.
"""

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

from weft.epp.assembly import Assembly
from weft.epp.config.config import read_config
from weft.epp.config.options import PickerOptions
from weft.epp.decision.director import Director
from weft.epp.decision.tickets import Ending, Ticket
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load
from weft.epp.pool.pool import Pool
from weft.epp.request.values import InferenceRequest, Prompt, Usage
from weft.epp.resolve import resolve

# How many times as long as the first each worker needs for a step.
SLOWNESS: Final = (1.0, 1.5, 2.5, 4.0)
# A step of the first: seconds at least, per prompt token, per sequence that gets a token, per token of KV.
_STEP_S, _PREFILL_S, _DECODE_S, _KV_S = 0.006, 0.00008, 0.0002, 2e-8
_CHUNK: Final = 2048  # prompt tokens a step
_MAX_RUNNING: Final = 64
_KV_TOKENS: Final = 160_000
_NUM_CACHED: Final = 24  # prefixes that a worker holds
_PREFIX_TOKENS: Final = 1024
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: its share, its tokens, its SLO in milliseconds (0: none)."""

    share: float
    num_own: tuple[int, int]
    num_output: tuple[int, int]
    ttft_ms: float
    tpot_ms: float


KINDS: Final = (
    Kind(0.55, (50, 400), (40, 160), 400.0, 35.0),  # somebody waits and reads
    Kind(0.20, (2000, 6000), (60, 200), 2500.0, 80.0),  # long documents
    Kind(0.25, (500, 4000), (200, 600), 0.0, 0.0),  # nobody waits
)


@dataclass(slots=True, eq=False)
class Request:
    """One of them, and what became of it."""

    number: int
    kind: Kind
    prefix: int
    num_prompt: int
    num_output: int
    arrived: float
    ticket: Ticket | None = None
    num_left: int = 0  # prompt tokens to compute
    num_done: int = 0
    first_token_at: float | None = None
    ended: float | None = None

    def has_met(self) -> bool:
        """Whether it kept to its SLO."""
        if self.first_token_at is None or self.ended is None:
            return False
        tpot_s = (self.ended - self.first_token_at) / max(1, self.num_output - 1)
        is_in_time = self.first_token_at - self.arrived <= self.kind.ttft_ms / 1000
        return is_in_time and tpot_s <= self.kind.tpot_ms / 1000


def make_requests(rate: float, seconds: float, seed: int) -> list[Request]:
    """Requests as they come, at random times."""
    chance, now = random.Random(seed), 0.0
    requests: list[Request] = []
    while (now := now + chance.expovariate(rate)) < seconds:
        kind = chance.choices(KINDS, [each.share for each in KINDS])[0]
        requests.append(
            Request(
                len(requests), kind, chance.randrange(60),
                _PREFIX_TOKENS + chance.randint(*kind.num_own), chance.randint(*kind.num_output), now,
            )
        )  # fmt: skip
    return requests


@dataclass(slots=True, eq=False)
class Worker:
    """A server that computes in steps, prompts in chunks beside the tokens of those that run."""

    slowness: float
    endpoint: Endpoint
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    num_kv: int = 0
    is_busy: bool = False

    def take(self, request: Request) -> None:
        """It came; of its prefix nothing is computed where that is cached."""
        held = _PREFIX_TOKENS if request.prefix in self.cached else 0
        request.num_left = request.num_prompt - held
        self.waiting.append(request)

    def plan(self) -> tuple[float, list[Request]]:
        """How long the next step takes, and whose prompts it computes."""
        budget, prefilling, num_prefill = _CHUNK, [], 0
        for request in self.running:
            if request.num_left and budget:
                taken = min(budget, request.num_left)
                budget, num_prefill = budget - taken, num_prefill + taken
                request.num_left -= taken
                prefilling.append(request)
        while self.waiting and budget and len(self.running) < _MAX_RUNNING:
            request = self.waiting[0]
            if self.num_kv + request.num_prompt + request.num_output > _KV_TOKENS:
                break
            self.waiting.popleft()
            self.num_kv += request.num_prompt + request.num_output
            self.running.append(request)
            taken = min(budget, request.num_left)
            budget, num_prefill = budget - taken, num_prefill + taken
            request.num_left -= taken
            prefilling.append(request)
        num_decoding = sum(not request.num_left for request in self.running)
        step_s = _STEP_S + num_prefill * _PREFILL_S + num_decoding * _DECODE_S + self.num_kv * _KV_S
        return step_s * self.slowness, prefilling

    def load(self) -> Load:
        """What its metrics say."""
        return Load(
            num_waiting=len(self.waiting), num_running=len(self.running),
            kv_usage=min(1.0, self.num_kv / _KV_TOKENS), block_size=64, num_blocks=_KV_TOKENS // 64,
        )  # fmt: skip


class Simulation:
    """Requests, a director and its workers, on one clock."""

    def __init__(self, config: str, slowness: Sequence[float] = SLOWNESS) -> None:
        self.now = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        pool = Pool()
        specs = [
            EndpointSpec(name=f"w{i}", address=f"10.0.0.{i + 1}", port=8000)
            for i in range(len(slowness))
        ]
        pool.replace("simulated", [(spec, spec.address) for spec in specs])
        for i, endpoint in enumerate(pool):
            endpoint.last_pick = -i  # not by chance
        resolved = resolve(read_config(config, "simulated"), allow_experimental=True)
        self.assembly = Assembly(resolved, pool, PickerMetrics(), 3.0, lambda: self.now)
        self.director = Director(
            self.assembly.parts(), PickerOptions(track_responses=True), lambda: self.now
        )
        self.workers = {
            endpoint.host_port: Worker(slow, endpoint)
            for slow, endpoint in zip(slowness, pool, strict=True)
        }

    def run(self, requests: Sequence[Request]) -> None:
        """Until all are answered."""
        for request in requests:
            self._at(request.arrived, partial(self._arrive, request))
        self._at(0.0, lambda: self._poll(requests))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _poll(self, requests: Sequence[Request]) -> None:
        for worker in self.workers.values():
            worker.endpoint.observe(worker.load(), polled_at=self.now)
        if any(request.ended is None for request in requests):
            self._at(self.now + _POLL_S, lambda: self._poll(requests))

    def _arrive(self, request: Request) -> None:
        picked = self.director.pick(_to_inference(request), None)
        try:
            picked.send(None)
        except StopIteration as stop:
            decision = stop.value
        else:
            raise RuntimeError("a pick waited, where nothing is to be waited for")
        request.ticket = decision.ticket
        worker = self.workers[decision.endpoints[0]]
        worker.take(request)
        if not worker.is_busy:
            self._step(worker)

    def _step(self, worker: Worker) -> None:
        step_s, prefilling = worker.plan()
        worker.is_busy = bool(worker.running)
        if worker.is_busy:
            self._at(self.now + step_s, lambda: self._commit(worker, prefilling))

    def _commit(self, worker: Worker, prefilling: Sequence[Request]) -> None:
        for request in prefilling:
            worker.cached[request.prefix] = None
            worker.cached.move_to_end(request.prefix)
        while len(worker.cached) > _NUM_CACHED:
            worker.cached.popitem(last=False)
        for request in list(worker.running):
            if not request.num_left:
                self._emit(worker, request)
        self._step(worker)

    def _emit(self, worker: Worker, request: Request) -> None:
        ticket = request.ticket
        assert ticket is not None
        request.num_done += 1
        if request.num_done == 1:
            request.first_token_at = self.now
            self.director.on_first_token(ticket)
        else:
            self.director.on_piece(ticket)
        if request.num_done >= request.num_output:
            request.ended = self.now
            worker.running.remove(request)
            worker.num_kv -= request.num_prompt + request.num_output
            self.director.on_usage(ticket, Usage(num_completion_tokens=request.num_done))
            self.director.on_end(ticket, Ending.NATURAL)


def _to_inference(request: Request) -> InferenceRequest:
    own = 10_000_000 + request.number * 10_000
    shared = range(request.prefix * 10_000, request.prefix * 10_000 + _PREFIX_TOKENS)
    token_ids = (*shared, *range(own, own + request.num_prompt - _PREFIX_TOKENS))
    headers = {
        "x-llm-d-slo-ttft-ms": str(request.kind.ttft_ms),
        "x-llm-d-slo-tpot-ms": str(request.kind.tpot_ms),
    }
    return InferenceRequest(
        request_id=str(request.number), path="/v1/completions", headers=headers,
        parser="openai-parser", prompts=(Prompt(token_ids=token_ids),), is_streaming=True,
    )  # fmt: skip


def share_met(requests: Sequence[Request], kinds: Sequence[Kind] = KINDS) -> float:
    """Of those with an SLO."""
    wanting = [request for request in requests if request.kind in kinds and request.kind.ttft_ms]
    return sum(request.has_met() for request in wanting) / len(wanting)
