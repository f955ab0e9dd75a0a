"""What ends a step: from the rows that the model gave to what the scheduler commits.

Chosen once, when the engine starts: a model that generates samples, one that was opened for pooling
pools. Each gives its results part by part, and is asked for the next when the one before is committed.

A drafted token's row was computed as if the draft were right. So each sequence is sampled and
committed token by token, and goes on to its next row as long as it chose what was drafted: penalties,
grammars, noise and ends are those of steps of one token, and so is every bit of the answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weft.compute.pooler import Pooler
from weft.compute.runner import Rows
from weft.engine.sampling.pooling import pool
from weft.engine.sampling.sampler import StepSampler
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.results import Result
from weft.engine.scheduling.sequence import Sequence, Status

Part = tuple[Plan, list[Result]]


class Finisher(Protocol):
    """From rows to results."""

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """The results of a step, each part to be committed before the next is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Pooling:
    """Hidden states to the results of the prompts that end in the step."""

    pooler: Pooler

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """All at once, on the host."""
        yield plan, pool(np.asarray(rows), plan, self.pooler)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Logits to tokens."""

    sampler: StepSampler

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """One token of each sequence, and then one more of those whose drafts were right."""
        chosen, chains = _split(plan)
        if not chains:
            yield plan, self.sampler.sample(rows, plan)
            return
        yield plan, self.sampler.sample(rows[chosen], plan)
        depth = 0
        while chains := [chain for chain in chains if chain.is_right(depth)]:
            entries = [PlannedRows.confirming(chain.sequence, depth) for chain in chains]
            follow = Plan(tuple(entries))
            chosen = [chain.first_row + depth for chain in chains]
            yield follow, self.sampler.sample(rows[chosen], follow)
            depth += 1


@dataclass(frozen=True, slots=True)
class _Chain:
    """A sequence, what was drafted for it, and where the logits of the drafts begin."""

    sequence: Sequence
    draft_token_ids: tuple[int, ...]
    first_row: int

    def is_right(self, depth: int) -> bool:
        """Whether the token just committed is the draft's `depth`-th, and more may follow."""
        if self.sequence.status is not Status.RUNNING or depth >= len(self.draft_token_ids):
            return False
        return self.sequence.token_ids[-1] == self.draft_token_ids[depth]


def _split(plan: Plan) -> tuple[list[int], list[_Chain]]:
    """The rows of logits without those of drafts; and the drafts."""
    rows: list[int] = []
    chains: list[_Chain] = []
    row = 0
    for entry in plan.entries:
        after = row + entry.num_scored + entry.samples
        rows += range(row, after)
        if entry.draft_token_ids:
            chains.append(_Chain(entry.sequence, entry.draft_token_ids, after))
        row = after + len(entry.draft_token_ids)
    return rows, chains
