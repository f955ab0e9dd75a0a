"""`DraftSampler`: samples draft tokens from a draft model's logits, in the same way as the tokens themselves.

The sampler uses the request's parameters, its grammar, and its random numbers for the position. So where the draft
model and the model agree, sampled draft tokens are accepted as often as greedy ones.
"""

import logging
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from weft.compute.protocols.masks import Words
from weft.compute.protocols.runner import Rows
from weft.compute.protocols.sampler import Sampler
from weft.engine.constraints.grammar import GrammarState
from weft.engine.scheduling.plan import SampledRow
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step.sampler_call import INTERNAL_ERROR, SamplerCall, Wanted
from weft.engine.step.step_choices import to_choice

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class Guess:
    """Draft tokens of one sequence in this step, at most `most` tokens."""

    sequence: Sequence
    most: int
    drafted: list[int] = field(default_factory=list)
    grammar: GrammarState | None = None  # state of the grammar after the draft tokens

    def follow_grammar(self) -> Words | None:
        """Returns the tokens that the grammar allows next; None if no grammar applies at this position.

        Raises `GrammarFailed` if the grammar cannot continue.
        """
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
    """Samples draft tokens.

    Logits are cut or padded to the served model's `vocab_size`: models of a family pad differently.
    """

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._sampler = sampler
        self._vocab_size = vocab_size

    def draw(self, guesses: list[G], rows: Rows) -> list[G]:
        """Samples one more draft token for each guess, from one row of `rows` each; returns the guesses that got a
        token.
        """
        wanted = [_want(guess, row) for row, guess in enumerate(guesses)]
        call = SamplerCall(self._sampler, self._fitted(rows), wanted, is_draft=True)
        drawn = []
        for guess, result in zip(guesses, call.results(), strict=True):
            # A failure here is ignored: the sampling of the step meets the same failure, and ends only this request.
            if isinstance(result, SampledRow) and result.token_id is not None:
                guess.drafted.append(result.token_id)
                drawn.append(guess)
        return drawn

    def _fitted(self, rows: Rows) -> Rows:
        """Cuts or pads logits to the width of the served model's logits."""
        missing = self._vocab_size - rows.shape[1]
        if missing <= 0:
            return rows[:, : self._vocab_size]
        if isinstance(rows, np.ndarray):
            return np.pad(rows, ((0, 0), (0, missing)), constant_values=-np.inf)
        wide = rows.new_full((len(rows), self._vocab_size), -np.inf)  # on a device
        wide[:, : rows.shape[1]] = rows
        return wide


def _want(guess: Guess, row: int) -> Wanted:
    """Returns the arguments for sampling a guess's next token by the request's parameters, as if its drafts were
    output.
    """
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
