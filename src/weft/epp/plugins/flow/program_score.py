"""`program-score-ordering-policy`: all flows share one queue; requests of flows with the fewest recent turns and tokens
come first.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from weft.epp.config.parameters import Ignored, Kind, NotNegative, Parameters, Positive
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import FollowsResponse, Surroundings, plugin
from weft.epp.flow.item import Item
from weft.epp.flow.programs import Programs, decayed
from weft.epp.metrics.rows import Rows
from weft.epp.request.values import Usage


class ProgramScoreParameters(Parameters, frozen=True, kw_only=True):
    """Weight of a turn and of a token, half-life of both, and time for which the record of an unused flow is kept. 0
    means no weight, no decay, and no time limit.
    """

    weight_turns: NotNegative = 1.0
    weight_tokens: NotNegative = 0.01
    half_life_seconds: NotNegative = 60.0
    rescore_interval_seconds: Annotated[
        NotNegative | None, Ignored("the order always uses the present scores")
    ] = None
    eviction_ttl_seconds: NotNegative = 3600.0
    eviction_sweep_seconds: Positive = 300.0


@dataclass(slots=True)
class _Program:
    """The turns and tokens of a flow, decayed to the time `at`."""

    at: float
    turns: float = 0.0
    tokens: float = 0.0


@plugin("program-score-ordering-policy", Kind.ORDERING, ProgramScoreParameters)
class ProgramScore(FollowsResponse):
    """Orders requests by the cost of their flow: a weighted sum of its turns (dispatched requests) and tokens, which
    decay with time.
    """

    def __init__(self, parameters: ProgramScoreParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._metrics = around.metrics
        self._clock = around.clock
        self._programs = Programs(
            _Program, around.clock, ttl_s=parameters.eviction_ttl_seconds,
            sweep_every_s=parameters.eviction_sweep_seconds,
        )  # fmt: skip
        self._open: dict[int, tuple[str, int]] = {}  # flow and prompt tokens, by ticket
        name, labels = "program_score_decayed_", ("program_id",)
        self._turns = Rows(
            around.metrics.gauge(name + "turns", "Turns per flow, with exponential decay.", labels)
        )
        self._tokens = Rows(
            around.metrics.gauge(
                name + "tokens", "Tokens per flow, with exponential decay.", labels
            )
        )
        around.metrics.before_text(self._update_gauges)

    def order(self, item: Item, _: float) -> float:
        """Returns the arrival time, which orders the requests of one flow."""
        return item.arrived

    def cost(self, fairness_id: str) -> float:
        """Returns the logarithm of a flow's cost, converted to a fixed moment.

        All costs decay by the same factor, so the decay never changes their order. Converted to a fixed moment, a cost
        only grows.
        """
        parameters, program = self._parameters, self._programs.get(fairness_id)
        if program is None:
            return -math.inf
        cost = parameters.weight_turns * program.turns + parameters.weight_tokens * program.tokens
        if cost <= 0.0:
            return -math.inf
        half_life_s = parameters.half_life_seconds
        return math.log2(cost) + (program.at / half_life_s if half_life_s else 0.0)

    def picked(self, cycle: Cycle, _: Schedule) -> None:
        """Adds a turn to the flow of a dispatched request."""
        self._add(cycle.fairness_id, turns=1.0)
        self._open[cycle.ticket_id] = (cycle.fairness_id, cycle.num_prompt_tokens)

    def used(self, ticket_id: int, usage: Usage) -> None:
        """Adds the tokens of a response to its flow."""
        opened = self._open.get(ticket_id)
        if opened is not None:
            name, num_prompt = opened
            num_tokens = (usage.num_prompt_tokens or num_prompt) + (
                usage.num_completion_tokens or 0
            )
            self._add(name, tokens=float(num_tokens))

    def ended(self, ticket_id: int) -> None:
        """Drops the state of a finished request. The response may have reported no token usage."""
        self._open.pop(ticket_id, None)

    def _add(self, name: str, *, turns: float = 0.0, tokens: float = 0.0) -> None:
        now, program = self._clock(), self._programs.used(name)
        had_turns, had_tokens = self._now(program, now)
        program.at, program.turns, program.tokens = now, had_turns + turns, had_tokens + tokens

    def _now(self, program: _Program, now: float) -> tuple[float, float]:
        since_s, half_life_s = now - program.at, self._parameters.half_life_seconds
        return (
            decayed(program.turns, since_s, half_life_s),
            decayed(program.tokens, since_s, half_life_s),
        )

    def _update_gauges(self) -> None:
        now = self._clock()
        sums: dict[tuple[str, ...], tuple[float, float]] = {}
        for name, program in self._programs.items():
            label = (self._metrics.fairness_ids(name),)  # many names may share the label "other"
            before, had = sums.get(label, (0.0, 0.0)), self._now(program, now)
            sums[label] = (before[0] + had[0], before[1] + had[1])
        self._turns.show({label: turns for label, (turns, _) in sums.items()})
        self._tokens.show({label: tokens for label, (_, tokens) in sums.items()})
