"""One run: sessions through gateways to workers, in virtual time, and the figures of what came back."""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.scale.gossip import gossiping
from benchmarks.scale.load import SCENARIOS, Session, Sessions, Text, Turn, shortened
from benchmarks.scale.policies import POLICIES
from benchmarks.scale.routers import MODEL, TRAVEL_S, Choice, Router, open_router
from benchmarks.scale.service import SERVICES, WEFT_CPU
from benchmarks.scale.virtual_time import run_virtually
from benchmarks.scale.worker import Job, Worker, WorkerDiedError
from weft.epp.request.values import InferenceRequest, Prompt, Refused

_DOWN_S = 10.0  # a worker that failed is back after this
_SHORTER = 0.1  # texts for the engines on CPUs, which have room for 16,384 tokens


class ImpossibleCaseError(ValueError):
    """A case that cannot be run; says which of its numbers is wrong, and what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run. Rates are requests a second for each worker."""

    policy: str = "default"
    scenario: str = "chat"
    service: str = "vllm-h100"
    num_workers: int = 8
    num_pickers: int = 1
    is_sharded: bool = False  # each picker has workers of its own; else each has all of them
    gossip_s: float | None = None  # time until pickers hear of each other's requests; None: never
    rate: float = 16.0
    warm_up_s: float = 10.0
    measured_s: float = 15.0
    target_s: float = 0.3  # to the first token: the objective
    seed: int = 1

    def __post_init__(self) -> None:
        most = self.num_workers if self.is_sharded else 1000
        for name, low, high in (("num_workers", 1, 10_000), ("num_pickers", 1, most)):
            if not low <= getattr(self, name) <= high:
                raise ImpossibleCaseError(f"{name} must be from {low} to {high}")
        for name in ("rate", "measured_s", "target_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise ImpossibleCaseError(f"{name} must be more than 0 and less than 1e6")
        if self.gossip_s is not None and (
            self.is_sharded
            or POLICIES[self.policy].without_picker is not None
            or not 0 <= self.gossip_s <= 10
        ):
            raise ImpossibleCaseError(
                "gossip_s must be from 0 to 10, for pickers that have all workers"
            )
        if not 0 <= self.warm_up_s < 1e6:
            raise ImpossibleCaseError("warm_up_s must be from 0 to 1e6")


@dataclass(slots=True)
class Outcome:
    """One request: how it ended, and when."""

    sent: float
    ending: str = "open"  # then "done", "failed" or "refused"
    first_token_s: float = math.inf
    num_prompt: int = 0
    num_cached: int = 0
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the requests that were sent after the warm-up."""

    num_requests: int
    num_failed: int
    num_refused: int
    hit_rate: float  # of prompt tokens
    first_token_p50_s: float
    first_token_p99_s: float
    objectives_met: float  # of all, failed ones included
    busiest: float  # requests of the worker that got most, over the mean
    requests_per_s: float

    def as_row(self) -> dict[str, float]:
        """For tables and files."""
        return asdict(self)


class Simulation:
    """The parts of one run."""

    def __init__(self, case: Case) -> None:
        scenario = SCENARIOS[case.scenario]
        service = SERVICES[case.service]
        if service.num_blocks <= WEFT_CPU.num_blocks:
            scenario = shortened(scenario, _SHORTER)
        self.case, self.scenario = case, scenario
        num_slow = int(case.num_workers * scenario.slow)
        self.workers = [
            Worker(number, service.slowed(2.0) if number < num_slow else service)
            for number in range(case.num_workers)
        ]
        policy = POLICIES[case.policy]
        self.routers: Sequence[Router] = [
            open_router(policy, self._share(number)) for number in range(case.num_pickers)
        ]
        if case.gossip_s is not None:
            self.routers = gossiping(self.routers, case.gossip_s)
        self.outcomes: list[Outcome] = []
        # Which gateway a connection gets, apart from what policies draw, so that all see one load.
        self._random = random.Random(f"{case.seed} gateways")
        self._loop = asyncio.get_running_loop()

    def _share(self, number: int) -> Sequence[Worker]:
        """The workers of one picker."""
        return (
            self.workers[number :: self.case.num_pickers] if self.case.is_sharded else self.workers
        )

    async def run(self) -> None:
        """Until every request has ended."""
        case = self.case
        seconds = case.warm_up_s + case.measured_s
        rate = case.rate * case.num_workers
        self._plan_failures()
        sessions = Sessions(self.scenario, requests_per_s=rate, seconds=seconds, seed=case.seed)
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                await asyncio.sleep(session.at_s - self._loop.time())
                group.create_task(self._attend(session, until=seconds))
        for router in self.routers:
            await router.close()

    def figures(self) -> Figures:
        """What came of it."""
        case = self.case
        counted = [each for each in self.outcomes if each.sent >= case.warm_up_s]
        done = [each for each in counted if each.ending == "done"]
        times = sorted(each.first_token_s for each in done)
        prompts = sum(each.num_prompt for each in done)
        sent = Counter(each.worker for each in counted if each.worker is not None)
        return Figures(
            num_requests=len(counted),
            num_failed=sum(each.ending == "failed" for each in counted),
            num_refused=sum(each.ending == "refused" for each in counted),
            hit_rate=sum(each.num_cached for each in done) / prompts if prompts else 0.0,
            first_token_p50_s=percentile(times, 0.50),
            first_token_p99_s=percentile(times, 0.99),
            objectives_met=sum(each.first_token_s <= case.target_s for each in done)
            / max(1, len(counted)),
            busiest=max(sent.values(), default=0) * case.num_workers / max(1, sent.total()),
            requests_per_s=len(counted) / case.measured_s,
        )

    def _plan_failures(self) -> None:
        """A second apart, in the middle of what is measured."""
        failing = self.workers[: int(len(self.workers) * self.scenario.failing)]
        for order, worker in enumerate(failing):
            at = self.case.warm_up_s + self.case.measured_s * (0.2 + 0.3 * order / len(failing))
            self._loop.call_at(at, worker.die)
            self._loop.call_at(at + _DOWN_S, worker.restart)

    async def _attend(self, session: Session, until: float) -> None:
        """A session's turns, one after the other; the next one knows the last one's answer."""
        router = self._random.choice(self.routers)  # a client keeps its connection
        text = session.begins
        due = self._loop.time()
        for turn in session.turns:
            due = max(due + turn.gap_s, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            if self._loop.time() >= until:
                return
            prompt = text.then(turn.asked)
            whole = prompt.then(turn.answered)
            await self._request(router, prompt, whole, turn)
            text = whole

    async def _request(self, router: Router, prompt: Text, whole: Text, turn: Turn) -> None:
        """One request; whatever becomes of it is in its outcome."""
        outcome = Outcome(self._loop.time(), num_prompt=prompt.num_tokens)
        self.outcomes.append(outcome)
        request = InferenceRequest(
            request_id=str(len(self.outcomes)), path="/v1/completions", headers={},
            parser="openai-parser", model=MODEL, prompts=(Prompt(packed=prompt.tokens),),
            is_streaming=True, max_tokens=len(turn.answered) // 4,
        )  # fmt: skip
        try:
            choice = await router.pick(request)
        except Refused:
            self._close(outcome, "refused")
            return
        outcome.worker = choice.worker.number
        job = Job(
            tokens=whole.tokens, chain=whole.chain, num_prompt=prompt.num_tokens,
            num_answer=len(turn.answered) // 4, first_token=self._loop.create_future(),
            ended=self._loop.create_future(),
        )  # fmt: skip
        is_whole = await self._follow(router, choice, job, outcome)
        router.ended(choice, is_whole=is_whole)
        self._close(outcome, "done" if is_whole else "failed")

    async def _follow(self, router: Router, choice: Choice, job: Job, outcome: Outcome) -> bool:
        """Whether the answer came to its end."""
        await asyncio.sleep(2 * TRAVEL_S)  # to the picker and back, or what is saved: to the worker
        try:
            choice.worker.submit(job)
            await job.first_token
            await asyncio.sleep(TRAVEL_S)
            router.first_token(choice)
            outcome.first_token_s = self._loop.time() - outcome.sent
            outcome.num_cached = job.num_cached
            await job.ended
        except WorkerDiedError:
            if job.first_token.done() and not job.first_token.cancelled():
                job.first_token.exception()  # looked at, so that nobody misses it
            if job.ended.done():
                job.ended.exception()
            return False
        return True

    def _close(self, outcome: Outcome, ending: str) -> None:
        assert outcome.ending == "open", "a request ends once"
        outcome.ending = ending


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank of an ordered list; infinite if it is empty."""
    if not ordered:
        return math.inf
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def _simulate(case: Case) -> Simulation:
    random.seed(
        f"{case.seed} policies"
    )  # what pickers draw: when they poll, who is first of equals
    simulation = Simulation(case)
    await simulation.run()
    return simulation


def simulate(case: Case) -> Simulation:
    """Run a case to its end. That workers fail, as they are to, is not news for a terminal."""
    logging.getLogger("weft.epp").addHandler(logging.NullHandler())
    return run_virtually(_simulate(case))


def figures_of(case: Case) -> Figures:
    """The figures of a case."""
    return simulate(case).figures()
