"""From a step's logits to committed tokens, drafts included.

A drafted token's row was computed as if the draft were right. So each sequence is sampled and
committed token by token, and goes on to its next row as long as it chose what was drafted: penalties,
grammars, noise and ends are those of steps of one token, and so is every bit of the answer.
"""

from dataclasses import dataclass

from weft.compute.runner import FloatArray
from weft.core.types import LogprobsMode
from weft.engine.messages import SequenceOutput
from weft.engine.sampling.sampler import sample
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Sequence, Status


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


def settle(
    logits: FloatArray, plan: Plan, scheduler: Scheduler, mode: LogprobsMode
) -> list[SequenceOutput]:
    """Sample and commit what the plan asked for; the news, token by token."""
    rows, chains = _split(plan)
    if not chains:
        return scheduler.commit(plan, sample(logits, plan, mode))
    outputs = scheduler.commit(plan, sample(logits[rows], plan, mode))
    depth = 0
    while chains := [chain for chain in chains if chain.is_right(depth)]:
        for chain in chains:
            scheduler.drafts.accept(depth)
            chain.sequence.num_accepted_tokens += 1
        follow = Plan(tuple([PlannedRows.last_of(chain.sequence) for chain in chains]))
        rows = [chain.first_row + depth for chain in chains]
        outputs += scheduler.commit(follow, sample(logits[rows], follow, mode))
        depth += 1
    return outputs


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
