"""`Sampler`: from the rows that a forward pass gave, wherever they lie, to tokens and log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.compute.runner import IntArray, Rows
from weft.core.types import LogprobRow, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is done to a row, in this order; what is left out does nothing.

    A mask that would leave no token is passed over. `seen` is prompt and output, for the repetition
    penalty; `output` is for the other two. `temperature` 0 takes the best, else `key` selects the noise.
    """

    allowed: Sequence[int] | None = None
    forbidden: Sequence[int] = ()
    forbidden_ends: Sequence[int] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    seen: Sequence[int] = ()
    output: Sequence[int] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 0.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    key: int = 0


def reads_seen(params: SamplingParams) -> bool:
    """Whether a choice by these needs to know `seen`."""
    return params.repetition_penalty != 1.0


def reads_output(params: SamplingParams) -> bool:
    """Whether a choice by these needs to know `output`."""
    return bool(params.presence_penalty or params.frequency_penalty)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token for each row; meaningless where the row is not finite."""

    token_ids: IntArray
    is_finite: NDArray[np.bool_]


class Sampler(Protocol):
    """What a backend makes of the logits that its runners give.

    `logits` is [rows, vocab] and `row` one of them, [vocab]; only what is returned comes to the host.
    """

    def draw_rows(self, logits: Rows, temperatures: list[float], keys: list[int]) -> Drawn:
        """The best token of each row (temperature 0) or a draw; `keys` select the noise of each row."""

    def choose_token(self, row: Rows, choice: Choice) -> int | None:
        """The next token; None where the row holds NaN or has no finite largest. `row` stays as it is."""

    def score_tokens(self, row: Rows, given: Sequence[int], num_best: int = 0) -> LogprobRow | None:
        """(token, log-probability, rank) of the given tokens, then of the `num_best` best that can come.

        None where the row holds NaN or has no finite largest.
        """

    def are_numbers(self, logits: Rows) -> bool:
        """Whether every row has a finite largest value, and no NaN."""

    def masked(self, row: Rows, mask: NDArray[np.bool_]) -> Rows:
        """The row with minus infinity where the mask, which is on the host, is False."""

    def processed(self, row: Rows, choice: Choice) -> Rows:
        """The row as the draw sees it: what cannot be drawn is minus infinity."""

    def score_values(self, row: Rows, given: Sequence[int], num_best: int) -> LogprobRow:
        """As `score_tokens`, of a row whose numbers are reported as they are."""
