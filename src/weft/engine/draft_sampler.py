"""`DraftSampler`: from the logits of what drafts to guesses, each as the token itself will be drawn.

By the request's parameters, its grammar, and its own noise of that position: so where draft and model agree, sampled
tokens come true as greedy ones do.
"""

import logging
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from weft.compute.masks import Words
from weft.compute.runner import Rows
from weft.compute.sampler import Sampler
from weft.engine.constraints.grammar import GrammarState
from weft.engine.sampler_call import INTERNAL_ERROR, SamplerCall, Wanted
from weft.engine.scheduling.plan import SampledRow
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step_choices import to_choice

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class Guess:
    """What is guessed of one sequence in this step, in `most` tokens."""

    sequence: Sequence
    most: int
    drafted: list[int] = field(default_factory=list)
    grammar: GrammarState | None = None  # behind the guesses

    def follow_grammar(self) -> Words | None:
        """What it allows next; None where there is none, or it says nothing yet. `GrammarFailed` where it ends."""
        if not self.drafted:
            ruling = self.sequence.ruling_grammar
            self.grammar = None if ruling is None else ruling.fork()
            return None if ruling is None else ruling.mask()
        if self.grammar is None:
            return None
        self.grammar.advance(self.drafted[-1])
        return self.grammar.mask()


G = TypeVar("G", bound=Guess)


class DraftSampler:
    """Logits may be padded differently within a family: they become as wide as the model's, `vocab_size`."""

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._sampler = sampler
        self._vocab_size = vocab_size

    def draw(self, guesses: list[G], rows: Rows) -> list[G]:
        """One more guess of each, whose logits `rows` are; those for which one was drawn."""
        wanted = [_want(guess, row) for row, guess in enumerate(guesses)]
        call = SamplerCall(self._sampler, self._fitted(rows), wanted, is_draft=True)
        drawn = []
        for guess, result in zip(guesses, call.results(), strict=True):
            # Where none can be guessed, who samples the step meets the reason too, and ends this request alone.
            if isinstance(result, SampledRow) and result.token_id is not None:
                guess.drafted.append(result.token_id)
                drawn.append(guess)
        return drawn

    def _fitted(self, rows: Rows) -> Rows:
        """As wide as those of the model it drafts for: logits are padded differently within a family."""
        missing = self._vocab_size - rows.shape[1]
        if missing <= 0:
            return rows[:, : self._vocab_size]
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=-np.inf)


def _want(guess: Guess, row: int) -> Wanted:
    """By the request's parameters, as if the guesses before were its output."""
    sequence, drafted = guess.sequence, guess.drafted
    wanted = Wanted(sequence.request, row)
    forced_token_id = None if drafted else sequence.forced_token_id
    try:
        mask = guess.follow_grammar() if forced_token_id is None else None
        wanted.choice = to_choice(sequence, drafted, mask=mask, forced_token_id=forced_token_id)
    except Exception:
        log.debug("no draft: request_id=%s", sequence.request.request_id, exc_info=True)
        wanted.failure = INTERNAL_ERROR
    return wanted
