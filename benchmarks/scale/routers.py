"""Chooses workers: our picker on what it polls and hears of them, or the few lines of a gateway without one."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.scale.policies import Policy
from benchmarks.scale.worker import Worker
from weft.core.config.quantity import parse_duration_s
from weft.epp.build import Picker, load_config, make_picker
from weft.epp.config.options import PickerOptions
from weft.epp.decision.tickets import Ending, Ticket
from weft.epp.plugins.producers.precise_prefix import PrecisePrefixProducer
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load
from weft.epp.pool.poller import MetricsSourceParameters, Poller
from weft.epp.prefix.events import Event
from weft.epp.prefix.feed import EventFeed
from weft.epp.request.values import InferenceRequest

TRAVEL_S = 0.001  # one way, between any two of client, gateway, picker and worker
EVENT_TRAVEL_S = 0.005  # an event's, which the worker publishes after the step
_SWEEP_EVERY_S = 5.0
_CHECK_EVERY_S = 1.0  # a gateway's health checks
MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes."""

    worker: Worker
    ticket: Ticket | None = None  # None: nobody follows the response


class Router(Protocol):
    """One gateway, with its picker if it has one. It shares nothing with others."""

    async def pick(self, request: InferenceRequest) -> Choice:
        """Choose; raises `Refused`."""

    def first_token(self, choice: Choice) -> None:
        """The answer has begun."""

    def ended(self, choice: Choice, *, is_whole: bool) -> None:
        """The answer is over."""

    async def close(self) -> None:
        """End what it does by itself."""


class _PolledWorker:
    """A `LoadSource`: what one worker says of itself, as old as the way back takes."""

    def __init__(self, worker: Worker, port: int) -> None:
        self.port: int | None = port
        self._worker = worker

    async def load(self) -> Load:
        """There and back."""
        await asyncio.sleep(TRAVEL_S)
        if not self._worker.is_up:
            raise ConnectionRefusedError
        load = self._worker.load()
        await asyncio.sleep(TRAVEL_S)
        return load

    async def close(self) -> None:
        """Nothing was opened."""


class PickerRouter:
    """`weft epp`: its configuration, director, poller and event feeds, in virtual time."""

    def __init__(self, policy: Policy, workers: Sequence[Worker]) -> None:
        options = PickerOptions(config_text=policy.config)
        config = load_config(options)
        loop = asyncio.get_running_loop()
        self.picker: Picker = make_picker(config, options, loop.time)
        self._loop = loop
        self._workers = {self.address(worker): worker for worker in workers}
        self._tasks: set[asyncio.Task[None]] = set()
        self._poller = self._open_poller(options)
        pool = self.picker.pool
        specs = [
            EndpointSpec(name=f"worker-{worker.number}", address=_host(worker), port=8000)
            for worker in workers
        ]
        pool.replace("simulation", [(spec, spec.address) for spec in specs])
        for plugin in self.picker.assembly.plugins.values():
            if isinstance(plugin, PrecisePrefixProducer):
                for endpoint in pool:
                    self._follow(plugin, endpoint)
        self._spawn(self._sweep())

    async def pick(self, request: InferenceRequest) -> Choice:
        """The picker's decision."""
        decision = await self.picker.director.pick(request, None)
        worker = self._workers[decision.endpoints[0]]
        return Choice(worker, decision.ticket if decision.tracks_response else None)

    @staticmethod
    def address(worker: Worker) -> str:
        """The address of a worker's endpoint."""
        return f"{_host(worker)}:8000"

    def first_token(self, choice: Choice) -> None:
        """Only a picker that follows responses hears of it."""
        if choice.ticket is not None:
            self.picker.director.on_first_token(choice.ticket)

    def ended(self, choice: Choice, *, is_whole: bool) -> None:
        """The same."""
        if choice.ticket is not None:
            ending = Ending.NATURAL if is_whole else Ending.ERROR
            self.picker.director.on_end(choice.ticket, ending)

    async def close(self) -> None:
        """End the polls, the feeds and the picker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._poller.close()
        await self.picker.close()

    def _open_poller(self, options: PickerOptions) -> Poller:
        assembly = self.picker.assembly
        parameters = assembly.parameters[assembly.config.sources[0][0]]
        assert isinstance(parameters, MetricsSourceParameters)
        interval_s = options.refresh_metrics_interval_s
        if parameters.interval is not None:
            interval_s = parse_duration_s(parameters.interval)

        def source(endpoint: Endpoint) -> _PolledWorker:
            return _PolledWorker(self._workers[endpoint.host_port], endpoint.spec.port)

        return Poller(assembly.pool, assembly.metrics, source, interval_s)

    def _follow(self, producer: PrecisePrefixProducer, endpoint: Endpoint) -> None:
        """Hear of a worker's blocks, in order, some time after they change."""
        feed = EventFeed(producer.index, endpoint, self.picker.metrics)
        feed.name_model(MODEL)
        sequence = 0

        def arrived(number: int, events: list[Event] | None) -> None:
            self._spawn(feed.clear("lost") if events is None else feed.apply(number, events))

        def tell(events: list[Event] | None) -> None:
            nonlocal sequence
            sequence += 1
            self._loop.call_later(EVENT_TRAVEL_S, arrived, sequence, events)

        self._workers[endpoint.host_port].subscribers.append(tell)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self.picker.director.sweep()

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class PlainRouter:
    """A gateway alone: passes over workers that refused its last health check."""

    def __init__(self, policy: Policy, workers: Sequence[Worker]) -> None:
        self._way = policy.without_picker
        self._workers = workers
        self._healthy = list(workers)
        self._in_flight = {worker.number: 0 for worker in workers}
        self._next = random.randrange(len(workers))  # gateways do not start at the same one
        self._checks = asyncio.get_running_loop().create_task(self._check())

    async def pick(self, request: InferenceRequest) -> Choice:
        """By what this gateway itself has sent."""
        workers, in_flight = self._healthy, self._in_flight
        if self._way == "round robin":
            self._next += 1
            worker = workers[self._next % len(workers)]
        elif self._way == "random":
            worker = random.choice(workers)
        else:
            fewest = min(in_flight[each.number] for each in workers)
            worker = random.choice([each for each in workers if in_flight[each.number] == fewest])
        in_flight[worker.number] += 1
        return Choice(worker)

    def first_token(self, choice: Choice) -> None:
        """It counts whole requests."""

    def ended(self, choice: Choice, *, is_whole: bool) -> None:
        """One less in flight."""
        self._in_flight[choice.worker.number] -= 1

    async def close(self) -> None:
        """End the health checks."""
        self._checks.cancel()
        await asyncio.gather(self._checks, return_exceptions=True)

    async def _check(self) -> None:
        while True:
            self._healthy = [each for each in self._workers if each.is_up] or list(self._workers)
            await asyncio.sleep(_CHECK_EVERY_S)


def open_router(policy: Policy, workers: Sequence[Worker]) -> Router:
    """The policy at work."""
    kind = PickerRouter if policy.without_picker is None else PlainRouter
    return kind(policy, workers)


def _host(worker: Worker) -> str:
    return f"10.1.{worker.number // 250}.{worker.number % 250 + 1}"
