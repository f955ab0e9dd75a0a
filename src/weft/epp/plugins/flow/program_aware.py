"""`program-aware-fairness`: dispatches from the flow with the least recent service, or with the most turns; waiting
times count in both strategies.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from weft.epp.config.parameters import Kind, NotNegative, Parameters, Positive
from weft.epp.decision.claims import DEFAULT_FAIRNESS_ID
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import FollowsResponse, Surroundings, plugin
from weft.epp.flow.item import ItemHeap
from weft.epp.flow.programs import Programs, decayed
from weft.epp.metrics.rows import Rows
from weft.epp.request.values import Usage

_OUTPUT_WEIGHT: Final = 2


class ProgramParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of the two strategies; each key begins with the name of its strategy. `turn_priority_time_weight` is
    the number of turns that one second of waiting counts for. 0 turns off a weight, the half-life, or the inactivity
    limit.
    """

    strategy: Literal["las", "turn-priority"] = "las"
    las_weight_service: NotNegative = 0.8
    las_weight_head_wait: NotNegative = 0.2
    las_half_life_seconds: NotNegative = 60.0
    turn_priority_time_weight: NotNegative = 0.5
    turn_priority_inactivity_seconds: NotNegative = 120.0
    eviction_ttl_seconds: Positive = 3600.0
    eviction_sweep_seconds: Positive = 300.0

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Yields the parameters that are set but belong to the strategy that is not used."""
        other = "turnPriority" if self.strategy == "las" else "las"
        for key in self.set_keys():
            if key.startswith(other):
                yield key, f"the strategy is {self.strategy}"


@dataclass(slots=True)
class _Program:
    """The service that a flow has received, in tokens as of the time `at`, and its numbers of requests."""

    at: float
    service: float = 0.0
    num_waits: int = 0  # number of finished waits: one for each dispatched request
    wait_s: float = 0.0
    num_open: int = 0
    ended: float = math.inf  # end of the last request

    @property
    def mean_wait_s(self) -> float:
        return self.wait_s / self.num_waits if self.num_waits else 0.0


@plugin("program-aware-fairness", Kind.FAIRNESS, ProgramParameters)
class ProgramAware(FollowsResponse):
    """Prefers the flow that has received the least service, or the session with the most turns. In both strategies,
    longer waiting times increase the preference.

    Service counts prompt tokens once and generated tokens twice. A session with many turns probably has its prefix
    cached, and is closer to its end.
    """

    def __init__(self, parameters: ProgramParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._metrics = around.metrics
        self._clock = around.clock
        self._is_by_service = parameters.strategy == "las"
        self._programs = Programs(
            _Program, around.clock, ttl_s=parameters.eviction_ttl_seconds,
            sweep_every_s=parameters.eviction_sweep_seconds,
        )  # fmt: skip
        self._open: dict[int, tuple[str, int]] = {}  # flow and prompt tokens, by ticket
        name, labels = "program_aware_", ("program_id",)
        self._jain = around.metrics.gauge(
            name + "jains_fairness_index",
            "Jain's fairness index of mean waiting times: 1 if all flows wait equally, 1/n if one flow has all "
            "the waiting.",
        )
        self._wait = Rows(
            around.metrics.gauge(
                name + "avg_wait_time_milliseconds", "Mean waiting time per flow.", labels
            )
        )
        self._attained = Rows(
            around.metrics.gauge(
                name + "attained_service_tokens", "Tokens per flow, with exponential decay.", labels
            )
        )
        around.metrics.before_text(self._update_gauges)

    def queue_of(self, fairness_id: str) -> str:
        return fairness_id

    def choose(self, queues: Mapping[str, ItemHeap], now: float) -> str:
        names = list(queues)
        if len(names) == 1:
            return names[0]
        waits = [
            0.0 if (head := queue.head()) is None else now - head.arrived
            for queue in queues.values()
        ]
        scores = self._service_scores if self._is_by_service else self._turn_scores
        # Ties go to the longest wait, and then to the flow that was served longest ago.
        _, _, first = max(
            zip(scores(names, waits, now), waits, range(0, -len(names), -1), strict=True)
        )
        return names[-first]

    def picked(self, cycle: Cycle, _: Schedule) -> None:
        """Records the dispatch of a request and its waiting time."""
        program = self._of(cycle.fairness_id)
        program.num_waits += 1
        program.num_open += 1
        program.wait_s += cycle.now - cycle.arrived
        self._open[cycle.ticket_id] = (cycle.fairness_id, cycle.num_prompt_tokens)

    def used(self, ticket_id: int, usage: Usage) -> None:
        """Adds the tokens of a response to the service of its flow."""
        opened = self._open.get(ticket_id)
        if opened is None or not self._is_by_service:
            return
        name, num_prompt = opened
        program = self._of(name)
        program.service += usage.num_prompt_tokens or num_prompt
        program.service += _OUTPUT_WEIGHT * (usage.num_completion_tokens or 0)

    def ended(self, ticket_id: int) -> None:
        """Drops the state of a finished request. The response may have reported no token usage."""
        opened = self._open.pop(ticket_id, None)
        program = None if opened is None else self._programs.get(opened[0])
        if program is not None:
            # The program may have been removed and created again meanwhile.
            program.num_open = max(0, program.num_open - 1)
            program.ended = self._clock()

    def _service_scores(
        self, names: Sequence[str], waits: Sequence[float], now: float
    ) -> Iterable[float]:
        services = [self._service(name, now) for name in names]
        per_token = self._parameters.las_weight_service / (max(services) or 1.0)
        per_second = self._parameters.las_weight_head_wait / (max(waits) or 1.0)
        return (
            per_second * wait - per_token * service
            for wait, service in zip(waits, services, strict=True)
        )

    def _turn_scores(
        self, names: Sequence[str], waits: Sequence[float], now: float
    ) -> Iterable[float]:
        per_second = self._parameters.turn_priority_time_weight
        return (
            self._turn(name, now - wait) + per_second * wait
            for name, wait in zip(names, waits, strict=True)
        )

    def _turn(self, name: str, arrived: float) -> int:
        """Returns the turn number of the flow's next request within its session. Requests without a fairness id belong
        to no session, so each is turn 1.
        """
        program = self._programs.get(name)
        if program is None or name == DEFAULT_FAIRNESS_ID:
            return 1
        limit_s = self._parameters.turn_priority_inactivity_seconds or math.inf
        if not program.num_open and arrived - program.ended > limit_s:
            return 1  # the program's prefix is no longer cached
        return program.num_waits + 1

    def _service(self, name: str, now: float) -> float:
        program = self._programs.get(name)
        if program is None:
            return 0.0
        return decayed(program.service, now - program.at, self._parameters.las_half_life_seconds)

    def _of(self, name: str) -> _Program:
        """Returns the record of a flow, with the service decayed to now, and marks the record as used."""
        now = self._clock()
        service = self._service(name, now)
        program = self._programs.used(name)
        program.service, program.at = service, now
        return program

    def _update_gauges(self) -> None:
        now = self._clock()
        attained: dict[tuple[str, ...], float] = {}
        waits: dict[tuple[str, ...], tuple[float, int]] = {}
        for name, program in self._programs.items():
            label = (self._metrics.fairness_ids(name),)  # many names may share the label "other"
            attained[label] = attained.get(label, 0.0) + self._service(name, now)
            wait_s, num_waits = waits.get(label, (0.0, 0))
            waits[label] = (wait_s + program.wait_s, num_waits + program.num_waits)
        if self._is_by_service:
            self._attained.show(attained)
        self._wait.show({k: 1000 * wait_s / max(1, n) for k, (wait_s, n) in waits.items()})
        means = [each.mean_wait_s for _, each in self._programs.items()]
        squares = len(means) * sum(each**2 for each in means)
        self._jain.set(sum(means) ** 2 / squares if squares else 1.0)
