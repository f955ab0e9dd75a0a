"""`StepSampler`: from a step's logits to tokens and log-probabilities, row by row, as its backend does it.

Each row is handled alone and in full, so it cannot depend on the rows beside it. The order of
transformations is the one users of this field expect: masks, bias, penalties, then temperature,
min-p, top-k, top-p, then the draw. Log-probabilities are of the model's own logits, before all that,
unless the engine's mode says otherwise; but where there is a grammar, what it does not allow has no
probability for them either.
"""

import itertools
import logging
from dataclasses import dataclass

from weft.compute.runner import Rows
from weft.compute.sampler import Choice, Sampler
from weft.core.config import LogprobsMode
from weft.core.types import LogprobRow
from weft.engine.constraints.grammar import GrammarFailed
from weft.engine.sampling.choosing import to_choice
from weft.engine.sampling.noise import noise_key
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.results import FailedRow, Result, SampledRow
from weft.engine.scheduling.sequence import Sequence

log = logging.getLogger("weft.engine")

_CORRUPT = FailedRow(error="the model produced logits that are not numbers", is_corrupt=True)


@dataclass(frozen=True, slots=True)
class StepSampler:
    """`backend` handles the logits that it computed; `mode` says what is reported of them."""

    backend: Sampler
    mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS

    def sample(self, logits: Rows, plan: Plan) -> list[Result]:
        """Choose a token for every entry that reaches its sequence's end, and score what was asked for."""
        counts = [entry.num_scored + entry.samples for entry in plan.entries]
        ends = list(itertools.accumulate(counts))
        num_rows, vocab_size = logits.shape
        assert (ends[-1] if ends else 0) == num_rows, (ends, num_rows)
        plain = {
            place: end - 1
            for place, (entry, end) in enumerate(zip(plan.entries, ends, strict=True))
            if is_plain(entry, vocab_size)
        }
        drawn = self._draw_plain(
            logits, [plan.entries[place] for place in plain], list(plain.values())
        )
        drawn_by_place = dict(zip(plain, drawn, strict=True))
        return [
            drawn_by_place.get(place) or self._sample_entry(logits[end - count : end], entry)
            for place, (entry, count, end) in enumerate(
                zip(plan.entries, counts, ends, strict=True)
            )
        ]

    def _draw_plain(
        self, logits: Rows, entries: list[PlannedRows], rows: list[int]
    ) -> list[Result]:
        """All plain entries in one call; the same tokens as one by one."""
        if not rows:
            return []
        sequences = [entry.sequence for entry in entries]
        drawn = self.backend.draw_rows(
            logits if len(rows) == len(logits) else logits[rows],
            [0.0 if s.params.is_greedy else s.params.temperature for s in sequences],
            [
                0 if s.params.is_greedy else noise_key(s.seed, s.num_output_tokens)
                for s in sequences
            ],
        )
        return [
            SampledRow(token_id=token_id) if is_finite else _CORRUPT
            for token_id, is_finite in zip(
                drawn.token_ids.tolist(), drawn.is_finite.tolist(), strict=True
            )
        ]

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
                for i in range(entry.num_scored)
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
            return FailedRow(error=f"the grammar cannot be followed any further: {failure}")
        except Exception:
            log.exception("sampling failed: request_id=%s", sequence.request.request_id)
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


def is_plain(entry: PlannedRows, vocab_size: int) -> bool:
    """Whether the entry asks for one token and no more, from its row as it is, by temperature alone."""
    if not entry.samples or entry.num_scored:
        return False
    sequence = entry.sequence
    params = sequence.params
    is_whole = params.is_greedy or (
        params.min_p == 0 and params.top_p >= 1.0 and not 0 < params.top_k < vocab_size
    )
    is_untouched = (
        sequence.ruling_grammar is None
        and sequence.forced_token_id is None
        and params.allowed_token_ids is None
        and not sequence.request.bad_token_ids
        and not params.logit_bias
        and not params.presence_penalty
        and not params.frequency_penalty
        and params.repetition_penalty == 1.0
        and (not params.min_tokens or sequence.num_output_tokens >= params.min_tokens)
    )
    return params.logprobs is None and is_whole and is_untouched
