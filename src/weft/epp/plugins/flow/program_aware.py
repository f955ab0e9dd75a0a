"""`program-aware-fairness`: the flow that got least of the pool lately is next, waits considered."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Surroundings, plugin_type
from weft.epp.flow.item import ItemHeap
from weft.epp.request.values import Usage

_Weight = Annotated[float, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_OUTPUT_WEIGHT: Final = 2
_MAX_PROGRAMS: Final = 10_000  # clients name them


class ProgramParameters(Parameters, frozen=True, kw_only=True):
    """What service and waiting weigh, and for how long service counts."""

    strategy: Literal["las"] = "las"
    las_weight_service: _Weight = 0.8
    las_weight_head_wait: _Weight = 0.2
    las_half_life_seconds: _Seconds = 60.0
    eviction_ttl_seconds: _Seconds = 3600.0
    eviction_sweep_seconds: _Seconds = 300.0


@dataclass(slots=True)
class _Program:
    """What a flow got, in tokens as of `at`."""

    at: float
    service: float = 0.0
    num_waits: int = 0
    wait_s: float = 0.0


class ProgramAware:
    """Least attained service first. Prompts count once, what was generated twice."""

    def __init__(self, parameters: ProgramParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._metrics = around.metrics
        self._programs: dict[str, _Program] = {}  # the one used longest ago is first
        self._open: dict[int, tuple[str, int]] = {}  # flow and prompt tokens, by ticket
        self._now = -math.inf
        self._swept_at = -math.inf
        name = "program_aware_"
        self._jain = around.metrics.gauge(
            name + "jains_fairness_index", "1 where all flows got as much, 1/n where one got all."
        )
        self._wait = around.metrics.gauge(
            name + "avg_wait_time_milliseconds", "Mean wait of a flow.", ("program_id",)
        )
        self._attained = around.metrics.gauge(
            name + "attained_service_tokens", "Tokens of a flow, ageing.", ("program_id",)
        )
        around.metrics.before_text(self._update_gauges)

    def queue_of(self, fairness_id: str) -> str:
        return fairness_id

    def choose(self, queues: Mapping[str, ItemHeap], now: float) -> str:
        self._now = now
        service = {name: self._service(name) for name in queues}
        waits = {name: self._head_wait(queue) for name, queue in queues.items()}
        most, longest = max(service.values()) or 1.0, max(waits.values()) or 1.0
        parameters = self._parameters
        return max(
            queues,
            key=lambda name: (
                parameters.las_weight_service * (1.0 - service[name] / most)
                + parameters.las_weight_head_wait * waits[name] / longest
            ),
        )

    def picked(self, cycle: Cycle, _: Schedule) -> None:
        """It is sent on: its wait is over."""
        self._now = cycle.now
        program = self._of(cycle.fairness_id)
        program.num_waits += 1
        program.wait_s += cycle.now - cycle.arrived
        self._open[cycle.ticket_id] = (cycle.fairness_id, cycle.num_prompt_tokens)

    def first_token(self, ticket_id: int) -> None:
        """Nothing follows from it."""

    def used(self, ticket_id: int, usage: Usage) -> None:
        """It took this much of the pool."""
        opened = self._open.pop(ticket_id, None)
        if opened is None:
            return
        name, num_prompt = opened
        program = self._of(name)
        program.service += usage.num_prompt_tokens or num_prompt
        program.service += _OUTPUT_WEIGHT * (usage.num_completion_tokens or 0)

    def ended(self, ticket_id: int) -> None:
        """It is over, used or not."""
        self._open.pop(ticket_id, None)

    def _head_wait(self, queue: ItemHeap) -> float:
        head = queue.head()
        return 0.0 if head is None else self._now - head.arrived

    def _service(self, name: str) -> float:
        program = self._programs.get(name)
        if program is None:
            return 0.0
        age_s = self._now - program.at
        return program.service * math.exp2(-age_s / self._parameters.las_half_life_seconds)

    def _of(self, name: str) -> _Program:
        """The flow, with its service as it counts now, as the one used last."""
        service = self._service(name)
        program = self._programs.pop(name, None) or _Program(self._now)
        program.service, program.at = service, self._now
        self._programs[name] = program
        self._forget()
        return program

    def _forget(self) -> None:
        """Those that nobody used for long, now and then, and the oldest of too many."""
        if len(self._programs) > _MAX_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        if self._now - self._swept_at < self._parameters.eviction_sweep_seconds:
            return
        self._swept_at = self._now
        limit = self._now - self._parameters.eviction_ttl_seconds
        self._programs = {n: each for n, each in self._programs.items() if each.at > limit}

    def _update_gauges(self) -> None:
        for gauge in (self._wait, self._attained):
            gauge.clear()
        services = []
        for name, program in self._programs.items():
            label = self._metrics.fairness_ids(name)
            services.append(self._service(name))
            self._attained.labels(label).inc(services[-1])
            if program.num_waits:
                self._wait.labels(label).set(program.wait_s / program.num_waits * 1000)
        squares = len(services) * sum(each**2 for each in services)
        self._jain.set(sum(services) ** 2 / squares if squares else 1.0)


ROWS: Final = (
    plugin_type("program-aware-fairness", Kind.FAIRNESS, ProgramAware, ProgramParameters),
)
