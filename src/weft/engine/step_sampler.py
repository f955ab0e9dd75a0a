"""`StepSampler`: from a step's logits to tokens and log-probabilities, row by row, as its backend does it.

Each row is handled alone and in full, so it cannot depend on the rows beside it. The order of
transformations is the one users of this field expect: masks, bias, penalties, then temperature,
min-p, top-k, top-p, then the draw. Log-probabilities are of the model's own logits, before all that,
unless the engine's mode is another; but where there is a grammar, what it does not allow has no
probability for them either.

A drafted token's row was computed as if the draft were right. So each sequence is sampled and
committed token by token, and goes on to its next row as long as it chose what was drafted: penalties,
grammars, noise and ends are those of steps of one token, and so is every bit of the answer.

Noise is a pure function of (seed, output position, token id), drawn from no stream: a seeded answer does
not depend on batching, chunking, preemption or masks. Its mixing function is the 64-bit finaliser of
SplitMix64.
"""

import itertools
import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields

from weft.compute.runner import Rows
from weft.compute.sampler import Choice, Sampler, reads_output, reads_seen
from weft.core.config import LogprobsMode
from weft.core.log import of_request
from weft.core.params import PARAMETERS
from weft.core.types import LogprobRow
from weft.engine.constraints.grammar import GrammarFailed
from weft.engine.scheduling.plan import FailedRow, Part, Plan, PlannedRows, Result, SampledRow
from weft.engine.scheduling.sequence import Sequence, SequenceStatus

log = logging.getLogger("weft.engine")

# The numbers of `SamplingParams` that a choice has under the same name.
_NUMBERS = tuple(field.name for field in fields(Choice) if field.name in PARAMETERS)

_CORRUPT = FailedRow(error="the model produced logits that are not numbers", is_corrupt=True)

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of SplitMix64
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class StepSampler:
    """`backend` handles the logits that it computed; `mode` is what is reported of them."""

    backend: Sampler
    mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """One token of each sequence, and then one more of those whose drafts were right."""
        if not plan.has_drafts:
            yield plan, self.sample(rows, plan)
            return
        chosen, chains = _split(plan)
        yield plan, self.sample(rows[chosen], plan)
        depth = 0
        while chains := [chain for chain in chains if chain.is_right(depth)]:
            entries = [PlannedRows.confirming(chain.sequence, depth) for chain in chains]
            follow = Plan(tuple(entries))
            chosen = [chain.first_row + depth for chain in chains]
            yield follow, self.sample(rows[chosen], follow)
            depth += 1

    def sample(self, logits: Rows, plan: Plan) -> list[Result]:
        """Choose a token for every entry that reaches its sequence's end, and score what was requested."""
        if all(map(is_plain, plan.entries)):
            return self._draw_plain(logits, plan.entries)
        counts = [entry.num_leading + entry.samples for entry in plan.entries]
        ends = list(itertools.accumulate(counts))
        assert (ends[-1] if ends else 0) == len(logits), (ends, len(logits))
        plain = {
            place: end - 1
            for place, (entry, end) in enumerate(zip(plan.entries, ends, strict=True))
            if is_plain(entry)
        }
        drawn_by_place: dict[int, Result] = {}
        if plain:
            entries = [plan.entries[place] for place in plain]
            drawn = self._draw_plain(logits[list(plain.values())], entries)
            drawn_by_place = dict(zip(plain, drawn, strict=True))
        return [
            drawn_by_place.get(place) or self._sample_entry(logits[end - count : end], entry)
            for place, (entry, count, end) in enumerate(
                zip(plan.entries, counts, ends, strict=True)
            )
        ]

    def _draw_plain(self, logits: Rows, entries: Seq[PlannedRows]) -> list[Result]:
        """All of them, each plain and with one row, in one call; the same tokens as one by one."""
        assert len(entries) == len(logits), (len(entries), len(logits))
        sequences = [entry.sequence for entry in entries]
        drawn = self.backend.draw_rows(
            logits,
            [s.temperature for s in sequences],
            [noise_key(s.seed, s.num_output_tokens) if s.temperature else 0 for s in sequences],
        )
        rows = zip(drawn.token_ids.tolist(), drawn.is_finite.tolist(), strict=True)
        return [SampledRow(token_id) if is_finite else _CORRUPT for token_id, is_finite in rows]

    def _sample_entry(self, logits: Rows, entry: PlannedRows) -> Result:
        sequence = entry.sequence
        try:
            if not self.backend.are_numbers(logits):
                return _CORRUPT
            prompt_logprobs = [
                self._score(
                    logits[i],
                    [sequence.token_ids[entry.start + i + 1]],
                    sequence.params.prompt_logprobs,
                )
                for i in range(entry.num_leading)
            ]
            if not entry.samples:
                return SampledRow(prompt_logprobs=prompt_logprobs)
            row = logits[-1]
            grammar = sequence.ruling_grammar
            if grammar is not None:
                row = self.backend.masked(row, grammar.mask())
            token_id = sequence.forced_token_id
            choice = to_choice(sequence) if token_id is None else Choice(allowed=[token_id])
            if token_id is None:
                token_id = self.backend.choose_token(row, choice)
            if token_id is None:
                return _CORRUPT
            return SampledRow(
                token_id=token_id,
                logprobs=self._logprobs(row, token_id, sequence, choice),
                prompt_logprobs=prompt_logprobs,
            )
        except GrammarFailed as failure:
            return FailedRow(error=failure.in_answer)
        except Exception:  # it ends this request, and no other of the step
            request = sequence.request
            extra = of_request(request.request_id, request.trace_headers)
            log.exception("sampling failed: request_id=%s", request.request_id, extra=extra)
            return FailedRow(error="internal error while sampling")

    def _logprobs(
        self, row: Rows, token_id: int, sequence: Sequence, choice: Choice
    ) -> LogprobRow | None:
        params = sequence.params
        if params.logprobs is None:
            return None
        if self.mode in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS):
            row = self.backend.processed(row, choice)
        if params.logprob_token_ids is None:
            return self._score(row, [token_id], params.logprobs)
        return self._score(row, [token_id, *params.logprob_token_ids], 0)

    def _score(self, row: Rows, token_ids: list[int], num_top: int | None) -> LogprobRow:
        assert num_top is not None
        num_best = len(row) if num_top == -1 else num_top
        if self.mode in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS):
            return self.backend.score_values(row, token_ids, num_best)
        scores = self.backend.score_tokens(row, token_ids, num_best)
        assert scores is not None  # rows that are no numbers were refused before
        return scores


def is_plain(entry: PlannedRows) -> bool:
    """Whether one token is wanted of the entry and no more, from its row as it is, by temperature alone."""
    sequence = entry.sequence
    if not (sequence.is_plain and entry.samples) or entry.num_leading:
        return False
    min_tokens = sequence.params.min_tokens
    if min_tokens and sequence.num_output_tokens < min_tokens:
        return False
    if sequence.grammar is None and sequence.reasoning is None:
        return True
    return sequence.ruling_grammar is None and sequence.forced_token_id is None


def to_choice(sequence: Sequence) -> Choice:
    """Everything but the grammar, which has masked the row before, and a token that is forced."""
    params = sequence.params
    return Choice(
        allowed=params.allowed_token_ids,
        forbidden=bad_ends(sequence) if sequence.request.bad_token_ids else (),
        forbidden_ends=early_ends(sequence),
        bias=params.logit_bias or {},
        seen=sequence.seen_token_ids if reads_seen(params) else (),
        output=sequence.output_token_ids if reads_output(params) else (),
        **{name: getattr(params, name) for name in _NUMBERS},
        key=noise_key(sequence.seed, sequence.num_output_tokens),
    )


def bad_ends(sequence: Sequence) -> list[int]:
    """The tokens that would complete a bad word now; only the output counts."""
    num_output = sequence.num_output_tokens
    ends = []
    for word in sequence.request.bad_token_ids:
        num_before = len(word) - 1
        if num_before == 0 or (
            num_before <= num_output and sequence.token_ids[-num_before:] == word[:-1]
        ):
            ends.append(word[-1])
    return ends


def early_ends(sequence: Sequence) -> list[int]:
    """The tokens that would end the answer where it must not end yet."""
    params = sequence.params
    if sequence.num_output_tokens < params.min_tokens:
        return [*sequence.request.eos_token_ids, *(params.stop_token_ids or ())]
    if params.ignore_eos and sequence.ruling_grammar is not None:
        return list(sequence.request.eos_token_ids)
    return []


def noise_key(seed: int, position: int) -> int:
    """The key of the noise of one output position, unlike that of all others; 64 bits."""
    return _mix_int(_mix_int(seed + _GAMMA) + position * _GAMMA)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A sequence, what was drafted for it, and where the logits of the drafts begin."""

    sequence: Sequence
    draft_token_ids: tuple[int, ...]
    first_row: int

    def is_right(self, depth: int) -> bool:
        """Whether the token just committed is the draft's `depth`-th, and more may follow."""
        if self.sequence.status is not SequenceStatus.RUNNING or depth >= len(self.draft_token_ids):
            return False
        return self.sequence.token_ids[-1] == self.draft_token_ids[depth]


def _split(plan: Plan) -> tuple[list[int], list[_Chain]]:
    """The rows of logits without those of drafts; and the drafts."""
    rows: list[int] = []
    chains: list[_Chain] = []
    row = 0
    for entry in plan.entries:
        after = row + entry.num_leading + entry.samples
        rows += range(row, after)
        if entry.draft_token_ids:
            chains.append(_Chain(entry.sequence, entry.draft_token_ids, after))
        row = after + len(entry.draft_token_ids)
    return rows, chains
