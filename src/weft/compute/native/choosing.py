"""Choosing from one row of logits, and scoring it: masks, bias, penalties, truncation, log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compute.native import _core
from weft.compute.runner import FloatArray

_INT32_MAX = 2**31 - 1


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


def choose_token(logits: FloatArray, choice: Choice) -> int | None:
    """The next token; None where the row holds NaN or has no finite largest. `logits` stays as it is."""
    return _core.choose(
        np.ascontiguousarray(logits),
        None if choice.allowed is None else np.array(choice.allowed, np.int32),
        np.array(choice.forbidden, np.int32),
        np.array(choice.forbidden_ends, np.int32),
        np.array(list(choice.bias), np.int32),
        np.array(list(choice.bias.values()), np.float32),
        np.array(choice.seen, np.int32),
        np.array(choice.output, np.int32),
        (choice.repetition_penalty, choice.frequency_penalty, choice.presence_penalty),
        choice.temperature,
        choice.min_p,
        min(choice.top_k, _INT32_MAX),
        choice.top_p,
        choice.key,
    )


def score_tokens(
    logits: FloatArray, given: Sequence[int], num_best: int = 0
) -> list[tuple[int, float, int]] | None:
    """(token, log-probability, rank) of the given tokens, then of the `num_best` best that can come.

    None where the row holds NaN or has no finite largest.
    """
    scores = _core.score(np.ascontiguousarray(logits), np.array(given, np.int32), num_best)
    return None if scores is None else list(zip(*scores, strict=True))
