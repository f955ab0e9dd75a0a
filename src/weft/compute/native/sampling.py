"""The `Sampler` of logits in the host's memory, mostly in C++: this module itself, with its functions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.compute.native import _core
from weft.compute.processed import processed, score_values
from weft.compute.runner import FloatArray
from weft.compute.sampler import Choice, Drawn
from weft.core.types import LogprobRow

__all__ = [
    "are_numbers",
    "choose_token",
    "draw_rows",
    "masked",
    "processed",
    "score_tokens",
    "score_values",
]

_INT32_MAX = 2**31 - 1
_NEVER = np.float32(-np.inf)


def draw_rows(logits: FloatArray, temperatures: list[float], keys: list[int]) -> Drawn:
    """See `Sampler`."""
    token_ids = np.zeros(len(logits), np.int32)
    is_finite = np.zeros(len(logits), np.bool_)
    _core.draw_rows(
        np.ascontiguousarray(logits),
        np.array(temperatures, np.float64),
        np.array(keys, np.uint64),
        token_ids,
        is_finite,
    )
    return Drawn(token_ids, is_finite)


def choose_token(row: FloatArray, choice: Choice) -> int | None:
    """See `Sampler`."""
    return _core.choose(
        np.ascontiguousarray(row),
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


def score_tokens(row: FloatArray, given: Sequence[int], num_best: int = 0) -> LogprobRow | None:
    """See `Sampler`."""
    scores = _core.score(np.ascontiguousarray(row), np.array(given, np.int32), num_best)
    return None if scores is None else list(zip(*scores, strict=True))


def are_numbers(logits: FloatArray) -> bool:
    """See `Sampler`."""
    return bool(np.isfinite(logits.max(axis=-1)).all())  # NaN spreads through max


def masked(row: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
    """See `Sampler`."""
    return np.where(mask, row, _NEVER)
