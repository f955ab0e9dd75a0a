"""`DraftSampler`: from the logits of what drafts to guesses, each as the token itself will be drawn.

By the request's parameters, its grammar, and its own noise of that position: so where draft and model agree, sampled
tokens come true as greedy ones do.
"""

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.compute.runner import Rows
from weft.compute.sampler import Sampler
from weft.engine.constraints.grammar import GrammarFailed, GrammarState
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step_sampler import noise_key, to_choice

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class Guess:
    """What is guessed of one sequence in this step, in `most` tokens."""

    sequence: Sequence
    most: int
    drafted: list[int] = field(default_factory=list)
    grammar: GrammarState | None = None  # behind the guesses

    def follow_grammar(self) -> NDArray[np.bool_] | None:
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
        rows = self._fitted(rows)
        plain = [i for i, guess in enumerate(guesses) if _is_plain(guess.sequence)]
        drawn: dict[int, int | None] = {}
        if plain:
            found = self._sampler.draw_rows(rows[plain], *self._noise([guesses[i] for i in plain]))
            for i, token_id, is_finite in zip(
                plain, found.token_ids.tolist(), found.is_finite.tolist(), strict=True
            ):
                drawn[i] = token_id if is_finite else None
        for i, guess in enumerate(guesses):
            token_id = drawn[i] if i in drawn else self._choose(guess, rows[i])
            drawn[i] = token_id
            if token_id is not None:
                guess.drafted.append(token_id)
        return [guess for i, guess in enumerate(guesses) if drawn[i] is not None]

    def _fitted(self, rows: Rows) -> Rows:
        """As wide as those of the model it drafts for: logits are padded differently within a family."""
        missing = self._vocab_size - rows.shape[1]
        if missing <= 0:
            return rows[:, : self._vocab_size]
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=-np.inf)

    @staticmethod
    def _noise(guesses: Seq[Guess]) -> tuple[list[float], list[int]]:
        temperatures, keys = [], []
        for guess in guesses:
            sequence = guess.sequence
            temperatures.append(sequence.temperature)
            keys.append(noise_key(sequence.seed, sequence.num_output_tokens + len(guess.drafted)))
        return temperatures, keys

    def _choose(self, guess: Guess, row: Rows) -> int | None:
        """By the request's parameters, as if the guesses before were its output; None: no more can be guessed."""
        sequence, drafted = guess.sequence, guess.drafted
        if not drafted and sequence.forced_token_id is not None:
            return sequence.forced_token_id
        try:
            return self._chosen(guess, row)
        except GrammarFailed:
            return None
        except Exception:  # who samples the step meets it too, and ends this request alone
            log.debug("no draft: request_id=%s", sequence.request.request_id, exc_info=True)
            return None

    def _chosen(self, guess: Guess, row: Rows) -> int | None:
        sequence, drafted = guess.sequence, guess.drafted
        mask = guess.follow_grammar()
        row = row if mask is None else self._sampler.masked(row, mask)
        choice = to_choice(sequence)
        return self._sampler.choose_token(
            row,
            replace(
                choice,
                seen=(*choice.seen, *drafted) if choice.seen else (),
                output=(*choice.output, *drafted) if choice.output else (),
                key=noise_key(sequence.seed, sequence.num_output_tokens + len(drafted)),
            ),
        )


def _is_plain(sequence: Sequence) -> bool:
    """Whether rows are drawn from by temperature alone."""
    is_ruled = sequence.grammar is not None or sequence.reasoning is not None
    return (
        sequence.is_plain
        and not is_ruled
        and sequence.num_output_tokens >= sequence.params.min_tokens
    )
