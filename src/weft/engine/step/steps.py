"""Order of the parts of a step: `StepsInTurn` or `StepsAhead`, chosen at the start of the engine.

`StepsInTurn` computes a step, samples its tokens and commits them before it plans the next step.

`StepsAhead` is for a backend that computes while the host continues (`AsyncRunner`). While step N and its sampling are
in flight, step N + 1 is planned and launched, with tokens that only the device knows. Then the tokens of step N are
awaited and committed, and the sampling of step N + 1 is launched with the state that these tokens have changed. So
masks, penalties, bad words and ends equal those of steps in turn. A sequence that ends with step N has a row in step N
+ 1 whose result is dropped. A command that changes anything other than requests calls `drain` first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from weft.compute.protocols.asynchronous import AsyncRunner
from weft.compute.protocols.runner import Rows
from weft.core.values.types import SequenceOutput
from weft.engine.scheduling.plan import Part, Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step.step_forward import ModelForward, StepForward
from weft.engine.step.step_sampler import StepSample, StepSampler
from weft.engine.step.tower_step import with_failed_items
from weft.engine.weights.engine_model import EngineModel

Lap = Callable[..., None]


class Steps(Protocol):
    """Runs steps; owned by the engine's thread."""

    lap: Lap  # called at the end of each part of a step

    @property
    def is_in_flight(self) -> bool:
        """True if a step was launched but not yet committed."""

    def turn(self) -> list[SequenceOutput]:
        """Does the work of one step; returns the outputs of its sequences."""

    def drain(self) -> list[SequenceOutput]:
        """Commits the step in flight, if there is one."""


class Finisher(Protocol):
    """Finishes a step: samples tokens for a generating model, pools hidden states for a pooling model."""

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """Yields the results of a step in parts; the caller must commit a part before it takes the next."""


@dataclass(slots=True)
class StepParts:
    """Objects that both orders of steps use. `finisher` is replaced after a sleep and when weights change."""

    scheduler: Scheduler
    finisher: Finisher
    compute_masks: Callable[[Plan], None]
    follow_plan: Callable[[], None]  # copies blocks before the plan's step overwrites them
    count: Callable[[Plan, list[SequenceOutput]], None]
    report_failed: Callable[[list[SequenceOutput]], None]

    def commit(self, plan: Plan, parts: Iterator[Part], lap: Lap) -> list[SequenceOutput]:
        """Commits the results of a step, part by part; returns the outputs."""
        outputs: list[SequenceOutput] = []
        for part, results in parts:
            lap("sample")
            if self.scheduler.cache.outputs is not None:
                results = with_failed_items(part, results, self.scheduler.cache.block_size)
            outputs += self.scheduler.commit(part, results)
            lap("commit")
        self.count(plan, outputs)
        return outputs

    def fail(self, *plans: Plan) -> None:
        """Ends the sequences of steps that could not be computed.

        Other sequences get the error that the engine died.
        """
        self.report_failed(self.scheduler.fail(*plans))


class StepsInTurn:
    """Computes one step after the other."""

    is_in_flight = False

    def __init__(self, parts: StepParts, forward: StepForward) -> None:
        self.lap: Lap = no_lap
        self._parts = parts
        self._forward = forward

    def turn(self) -> list[SequenceOutput]:
        parts, scheduler = self._parts, self._parts.scheduler
        plan, name = scheduler.plan(), "schedule"
        if plan is not None and scheduler.is_drafting:
            self.lap(name)
            plan, name = scheduler.draft(plan), "draft"
        parts.follow_plan()
        if plan is None:
            return []
        self.lap(name, plan)
        parts.compute_masks(plan)
        self.lap("masks")
        try:
            rows = self._forward.forward(plan)
            self.lap("forward")
            return parts.commit(plan, parts.finisher.finish(rows, plan), self.lap)
        except Exception:
            parts.fail(plan)
            raise

    def drain(self) -> list[SequenceOutput]:
        """Returns no outputs: between turns no step is in flight."""
        return []


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step whose sampling was launched and not yet committed."""

    plan: Plan
    rows: Rows
    sample: StepSample
    sampled_places: dict[Sequence, int]  # index of each sequence's token among the sampled tokens

    @classmethod
    def of(cls, plan: Plan, rows: Rows, sample: StepSample) -> "_InFlight":
        sampling = (entry.sequence for entry in plan.entries if entry.samples)
        return cls(plan, rows, sample, {sequence: place for place, sequence in enumerate(sampling)})


class StepsAhead:
    """Launches each step before the step in flight is committed."""

    def __init__(self, parts: StepParts, sampler: StepSampler, forward: ModelForward) -> None:
        self.lap: Lap = no_lap
        self._parts = parts
        self._sampler = sampler
        self._forward = forward
        self._in_flight: _InFlight | None = None

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight is not None

    def turn(self) -> list[SequenceOutput]:
        plan = self._plan()
        self._parts.follow_plan()
        if plan is None:
            return self.drain()
        self.lap("schedule", plan)
        try:
            rows = self._launch(plan)
            self.lap("forward")
            outputs = self.drain()
            self._sample(plan, rows)
        except Exception:
            self._parts.fail(plan, *([] if self._in_flight is None else [self._in_flight.plan]))
            raise
        return outputs

    def drain(self) -> list[SequenceOutput]:
        step = self._in_flight
        if step is None:
            return []
        try:
            self._forward.wait(step.rows)
            outputs = self._parts.commit(step.plan, step.sample.parts(), self.lap)
        except Exception:
            self._parts.fail(step.plan)
            raise
        self._in_flight = None
        return outputs

    def _plan(self) -> Plan | None:
        step = self._in_flight
        if step is None:
            return self._parts.scheduler.plan()
        if step.sampled_places and step.sample.device_token_ids is None:
            return None  # the step in flight could not be sampled in one call
        return self._parts.scheduler.plan_ahead(step.plan)

    def _launch(self, plan: Plan) -> Rows:
        step = self._in_flight
        if step is None:
            return self._forward.forward(plan)
        token_ids = step.sample.device_token_ids
        return self._forward.forward_after(plan, step.sampled_places, token_ids)

    def _sample(self, plan: Plan, rows: Rows) -> None:
        self._parts.compute_masks(plan)
        self.lap("masks")
        self._in_flight = _InFlight.of(plan, rows, self._sampler.start(rows, plan))
        self.lap("sample")


def open_steps(parts: StepParts, model: EngineModel, forward: StepForward) -> Steps:
    """Returns `StepsAhead` if the runner supports it, no drafter is used, and the step samples tokens.

    Otherwise returns `StepsInTurn`.
    """
    sampler, runner = parts.finisher, model.runner
    if parts.scheduler.is_drafting or not isinstance(runner, AsyncRunner):
        return StepsInTurn(parts, forward)
    if isinstance(sampler, StepSampler) and isinstance(forward, ModelForward):
        return StepsAhead(parts, sampler, forward)
    return StepsInTurn(parts, forward)


def no_lap(name: str, plan: Plan | None = None) -> None:
    """Does nothing; used while no trace is recorded."""
    del name, plan
