"""`StepSampler`: samples tokens and logprobs from a step's logits, with one backend call for all rows.

Each row is processed completely and alone, so it cannot depend on the other rows. The order of transformations is the
usual one: masks, bias, penalties, then temperature, min-p, top-k, top-p, then the random choice. Logprobs are of the
model's own logits, before all transformations, unless the engine's mode says otherwise; tokens that a grammar forbids
have no probability in any mode.

The row of a draft token was computed as if the draft were accepted. Its token is chosen in the same call and in the
same way, with penalties, random numbers and ends as if the earlier drafts were output. Each sequence is committed token
by token, and continues with its next row as long as it chose the draft token. If a grammar or open reasoning follows
the output, a row is sampled only when the token before it is committed. So every bit of the answer equals that of steps
with one token.
"""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from weft.compute.protocols.runner import Rows
from weft.compute.protocols.sampler import Choice, Sampler
from weft.core.observe.log import of_request
from weft.core.values.logprobs import LogprobsMode
from weft.engine.constraints.grammar import GrammarFailed
from weft.engine.constraints.times import allowed_tokens
from weft.engine.scheduling.plan import FailedRow, Part, Plan, PlannedRows, Result, SampledRow
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.step.sampler_call import CORRUPT, INTERNAL_ERROR, SamplerCall, Score, Wanted
from weft.engine.step.step_choices import next_choice, plain_choices, to_choice

log = logging.getLogger("weft.engine")


@dataclass(frozen=True, slots=True)
class StepSampler:
    """Samples steps. `backend` samples the logits that it computed; `mode` is the kind of reported logprobs."""

    backend: Sampler
    mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """Yields one token of each sequence, then further tokens of sequences whose drafts were accepted."""
        results = self._plain_results(rows, plan)
        return StepSample(self, rows, plan).parts() if results is None else iter([(plan, results)])

    def start(self, rows: Rows, plan: Plan) -> "StepSample":
        """Starts to sample all rows that can be sampled before any token is known."""
        return StepSample(self, rows, plan)

    def sample(self, logits: Rows, plan: Plan) -> list[Result]:
        """Returns the results of a plan without drafts."""
        [(_, results)] = self.finish(logits, plan)
        return results

    def _plain_results(self, rows: Rows, plan: Plan) -> list[Result] | None:
        """Returns the results of a plan that only samples a token from each unchanged row.

        Returns None for any other plan, and if the call fails: then `StepSample` finds the sequence that caused the
        failure.
        """
        if not plan.entries or not all(map(_is_plain, plan.entries)):
            return None
        try:
            choices = plain_choices([entry.sequence for entry in plan.entries])
            sampled = self.backend.sample(rows, choices, self.mode)
        except Exception:
            log.debug("a call for all rows failed", exc_info=True)
            return None
        outcome = sampled.result()
        tokens = zip(outcome.token_ids.tolist(), outcome.is_finite.tolist(), strict=True)
        return [SampledRow(token_id) if is_finite else CORRUPT for token_id, is_finite in tokens]


class StepSample:
    """A step whose sampling has started; its sequences are committed one by one."""

    def __init__(self, sampler: StepSampler, rows: Rows, plan: Plan) -> None:
        self._sampler = sampler
        self._rows = rows
        self._plan = plan
        self._chains: list[_Chain] = []
        self._call = SamplerCall(sampler.backend, rows, self._want_all(), sampler.mode)

    @property
    def device_token_ids(self) -> Any:
        """The sampled tokens on the device, in row order; see `Sampled`."""
        return self._call.device_token_ids

    def parts(self) -> Iterator[Part]:
        """Yields the results of the plan, then those after accepted drafts, each time one token per sequence."""
        results = self._call.results() if self._plan.entries else []
        count = len(self._plan.entries)
        yield self._plan, results[:count]
        if not self._chains:
            return
        foreseen = iter(results[count:])
        for chain in self._chains:
            chain.results = [next(foreseen) for _ in chain.draft_token_ids if chain.is_foreseen]
        chains, depth = self._chains, 0
        while chains := [chain for chain in chains if chain.is_right(depth)]:
            entries = [PlannedRows.confirming(chain.sequence, depth) for chain in chains]
            self._follow([chain for chain in chains if not chain.is_foreseen], depth)
            yield Plan(tuple(entries)), [chain.results[depth] for chain in chains]
            depth += 1

    def _want_all(self) -> list[Wanted]:
        """Returns the sampling work for each entry, then for each draft row that can be sampled in advance.

        A row can be sampled in advance if its choice does not depend on whether the draft before it is accepted.
        """
        wanted: list[Wanted] = []
        row = 0
        for entry in self._plan.entries:
            one = Wanted(entry.sequence.request)
            if entry.num_leading:
                one.prompt_scores = _prompt_scores(entry, row)
                row += entry.num_leading
            if entry.samples:
                self._want_token(one, entry.sequence, row)
                row += 1
            wanted.append(one)
            if entry.draft_token_ids:
                self._chains.append(_Chain(entry.sequence, entry.draft_token_ids, row))
                row += len(entry.draft_token_ids)
        assert row == len(self._rows), (row, len(self._rows))
        for chain in self._chains:
            if chain.is_foreseen:
                depths = range(len(chain.draft_token_ids))
                wanted += [self._want_behind(chain, depth) for depth in depths]
        return wanted

    def _want_behind(self, chain: "_Chain", depth: int) -> Wanted:
        one = Wanted(chain.sequence.request)
        drafted = chain.draft_token_ids[: depth + 1]
        self._want_token(one, chain.sequence, chain.first_row + depth, drafted)
        return one

    def _want_token(
        self, one: Wanted, sequence: Sequence, row: int, drafted: tuple[int, ...] = ()
    ) -> None:
        one.row = row
        if sequence.status is not SequenceStatus.RUNNING:
            return  # the sequence has ended since the launch of the step: this token is dropped
        try:
            one.choice = self._choice(sequence, row, drafted)
            if sequence.params.logprobs is not None:
                given = sequence.params.logprob_token_ids
                num_best = sequence.params.logprobs if given is None else 0
                one.score = Score(row, given or (), num_best)
        except GrammarFailed as failure:
            one.failure = FailedRow(error=failure.in_answer)
        except Exception:  # ends only this request
            request = sequence.request
            extra = of_request(request.request_id, request.trace_headers)
            log.exception("sampling failed: request_id=%s", request.request_id, extra=extra)
            one.failure = INTERNAL_ERROR

    def _choice(self, sequence: Sequence, row: int, drafted: tuple[int, ...]) -> Choice:
        rules = sequence.speech_rules
        if rules is None:
            return next_choice(sequence, drafted)
        mask = allowed_tokens(rules, sequence.output_token_ids, self._rows[row])
        return to_choice(sequence, drafted, mask=mask)

    def _follow(self, chains: "Seq[_Chain]", depth: int) -> None:
        """Samples, for each chain, the row after its accepted draft at `depth`."""
        if not chains:
            return
        wanted = []
        for chain in chains:
            one = Wanted(chain.sequence.request)
            self._want_token(one, chain.sequence, chain.first_row + depth)
            wanted.append(one)
        call = SamplerCall(self._sampler.backend, self._rows, wanted, self._sampler.mode)
        for chain, result in zip(chains, call.results(), strict=True):
            chain.results.append(result)


def _is_plain(entry: PlannedRows) -> bool:
    """True if the entry has one row of logits, and its token is sampled from the unchanged row."""
    if not entry.samples or entry.num_leading or entry.draft_token_ids:
        return False
    sequence = entry.sequence
    return sequence.is_plain and sequence.grammar is None and sequence.reasoning is None


def _prompt_scores(entry: PlannedRows, first_row: int) -> list[Score]:
    """Returns the logprobs to compute of the prompt tokens that follow each of the entry's leading rows."""
    num_best = entry.sequence.params.prompt_logprobs
    assert num_best is not None, "leading rows are wanted for their scores"
    first = entry.start + 1
    tokens = entry.sequence.token_ids[first : first + entry.num_leading]
    return [Score(first_row + i, [token_id], num_best) for i, token_id in enumerate(tokens)]


@dataclass(slots=True, eq=False)
class _Chain:
    """A sequence with its drafts, and the row where the logits of the drafts begin."""

    sequence: Sequence
    draft_token_ids: tuple[int, ...]
    first_row: int
    # Result of the row after each draft, as far as it is known.
    results: list[Result] = field(default_factory=list)

    @property
    def is_foreseen(self) -> bool:
        """True if the choice after a draft depends only on the drafts, not on the state of a grammar or of
        reasoning.
        """
        return self.sequence.grammar is None and self.sequence.reasoning is None

    def is_right(self, depth: int) -> bool:
        """True if the token that was just committed equals the draft at `depth`, and the sequence has not ended."""
        if self.sequence.status is not SequenceStatus.RUNNING or depth >= len(self.draft_token_ids):
            return False
        return self.sequence.token_ids[-1] == self.draft_token_ids[depth]
