"""A scheduling profile: runs filters in order, sums the weighted scores, and lets one picker choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from weft.epp.decision.cycle import Cycle, ProfileRun
from weft.epp.decision.plugin import Filter, Picker, Scorer
from weft.epp.metrics.series import Timer
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Drop, Refused


@dataclass(frozen=True, slots=True)
class FilterStep:
    """A filter and its name."""

    name: str
    plugin: Filter
    timer: Timer


@dataclass(frozen=True, slots=True)
class ScorerStep:
    """A scorer, its name and its weight."""

    name: str
    plugin: Scorer
    timer: Timer
    weight: float


@dataclass(frozen=True, slots=True)
class PickerStep:
    """A picker and its name."""

    name: str
    plugin: Picker
    timer: Timer


class SchedulingProfile:
    """A scheduling profile with its plugins."""

    def __init__(
        self,
        name: str,
        filters: Sequence[FilterStep],
        scorers: Sequence[ScorerStep],
        picker: PickerStep,
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker

    def run(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> ProfileRun:
        """Filters and scores the candidates, and picks. Raises `Refused` if no candidate remains after the filters."""
        run = ProfileRun(self.name, candidates)
        cycle.runs.append(run)
        run.scored = self._filter(cycle, run)
        run.totals = self._score(cycle, run)
        started = perf_counter()
        run.picked = self.picker.plugin.pick(run.scored, run.totals)
        self.picker.timer.observe(perf_counter() - started)
        return run

    def _filter(self, cycle: Cycle, run: ProfileRun) -> Sequence[Endpoint]:
        left = run.candidates
        for step in self.filters:
            started = perf_counter()
            left = step.plugin.keep(cycle, left)
            step.timer.observe(perf_counter() - started)
            run.after_filters.append((step.name, left))
            if not left:
                raise Refused(
                    429,
                    f"no endpoint is left after filter {step.name!r} of profile {self.name!r}",
                    Drop.SATURATED,
                )
        return left

    def _score(self, cycle: Cycle, run: ProfileRun) -> list[float]:
        totals = [0.0] * len(run.scored)
        for step in self.scorers:
            started = perf_counter()
            scores = step.plugin.score(cycle, run.scored)
            totals = _added(totals, scores, step.weight)
            step.timer.observe(perf_counter() - started)
            run.scores.append((step.name, step.weight, scores))
        return totals


def _added(totals: list[float], scores: Sequence[float], weight: float) -> list[float]:
    """Returns the totals with the scores, limited to 1. A NaN from a server's metrics counts as 0."""
    return [
        total + (weight * score if score < 1.0 else weight) if score > 0.0 else total
        for total, score in zip(totals, scores, strict=True)
    ]
