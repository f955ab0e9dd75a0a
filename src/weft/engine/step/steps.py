"""The order in which a step's parts are done: `StepsInTurn` or `StepsAhead`, chosen at the start.

`StepsInTurn` computes a step, samples its tokens and commits them before it plans the next.

`StepsAhead` is for a backend that computes while the host goes on (`AsyncRunner`). While step N is in flight, its
sampling launched behind it, N + 1 is planned and launched, with tokens that only the device knows; then N's tokens are
waited for and committed, and the sampling of N + 1 is launched, by what these tokens have changed. So masks, penalties,
bad words and ends are those of steps in turn. A sequence that ends with N has a row in N + 1 whose result is dropped.
What changes anything but requests calls `drain` first.
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
from weft.engine.weights.engine_model import EngineModel

Lap = Callable[..., None]


class Steps(Protocol):
    """The engine's thread owns them."""

    lap: Lap  # is called at the end of each part

    @property
    def is_in_flight(self) -> bool:
        """Whether a step has been launched and not been committed."""

    def turn(self) -> list[SequenceOutput]:
        """Do one step's worth of work; what sequences emit."""

    def drain(self) -> list[SequenceOutput]:
        """Commit the step in flight, if there is one."""


class Finisher(Protocol):
    """What ends a step, chosen at the start: a model that generates samples, one that pools pools."""

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """The results of a step, each part to be committed before the next is taken."""


@dataclass(slots=True)
class StepParts:
    """What both orders put together. `finisher` is another after a sleep, or with other weights."""

    scheduler: Scheduler
    finisher: Finisher
    compute_masks: Callable[[Plan], None]
    follow_plan: Callable[[], None]  # what has to be done with blocks before a plan is computed
    count: Callable[[Plan, list[SequenceOutput]], None]
    report_failed: Callable[[list[SequenceOutput]], None]

    def commit(self, plan: Plan, parts: Iterator[Part], lap: Lap) -> list[SequenceOutput]:
        """Take in what became of a step, part by part."""
        outputs: list[SequenceOutput] = []
        for part, results in parts:
            lap("sample")
            outputs += self.scheduler.commit(part, results)
            lap("commit")
        self.count(plan, outputs)
        return outputs

    def fail(self, *plans: Plan) -> None:
        """End the sequences of steps that could not be computed. Others get that the engine died."""
        self.report_failed(self.scheduler.fail(*plans))


class StepsInTurn:
    """One step after the other."""

    is_in_flight = False

    def __init__(self, parts: StepParts, forward: StepForward) -> None:
        self.lap: Lap = no_lap
        self._parts = parts
        self._forward = forward

    def turn(self) -> list[SequenceOutput]:
        """See `Steps`."""
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
        """Nothing is in flight between turns."""
        return []


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step whose sampling has been launched."""

    plan: Plan
    rows: Rows
    sample: StepSample
    sampled_places: dict[Sequence, int]  # of each token among those that it samples

    @classmethod
    def of(cls, plan: Plan, rows: Rows, sample: StepSample) -> "_InFlight":
        sampling = (entry.sequence for entry in plan.entries if entry.samples)
        return cls(plan, rows, sample, {sequence: place for place, sequence in enumerate(sampling)})


class StepsAhead:
    """A step is launched behind the one in flight, before that is committed."""

    def __init__(self, parts: StepParts, sampler: StepSampler, forward: ModelForward) -> None:
        self.lap: Lap = no_lap
        self._parts = parts
        self._sampler = sampler
        self._forward = forward
        self._in_flight: _InFlight | None = None

    @property
    def is_in_flight(self) -> bool:
        """See `Steps`."""
        return self._in_flight is not None

    def turn(self) -> list[SequenceOutput]:
        """See `Steps`."""
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
        """See `Steps`."""
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
            return None  # it could not be sampled as a whole
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
    """Ahead where the runner can be, what follows the model's steps is not, and the tokens come from them alone."""
    sampler, runner = parts.finisher, model.runner
    if parts.scheduler.is_drafting or not isinstance(runner, AsyncRunner):
        return StepsInTurn(parts, forward)
    if isinstance(sampler, StepSampler) and isinstance(forward, ModelForward):
        return StepsAhead(parts, sampler, forward)
    return StepsInTurn(parts, forward)


def no_lap(name: str, plan: Plan | None = None) -> None:
    """While nobody wants to know where the time goes."""
    del name, plan
