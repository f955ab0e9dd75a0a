"""What the draw sees of a row, in numpy: what samplers are held to."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.sampler import Choice
from weft.core.values.types import LogprobRow

_NEVER = np.float32(-np.inf)


def processed(row: FloatArray, choice: Choice) -> FloatArray:
    """The row as the draw sees it: what cannot be drawn is minus infinity."""
    constrained = constrain(row, choice)
    if choice.temperature == 0:
        return constrained
    candidates, scores = truncate(constrained, choice)
    left = np.full_like(row, _NEVER)
    left[candidates] = scores.astype(np.float32)
    return left


def truncate(row: FloatArray, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The token ids that may be drawn, ascending, and their logits divided by the temperature."""
    scores = row.astype(np.float64) / choice.temperature
    floor = np.float64(-np.inf)
    if choice.min_p > 0:
        floor = scores.max() + np.log(choice.min_p)
    if 0 < choice.top_k < len(scores):
        kth_best = np.partition(scores, -choice.top_k)[-choice.top_k]
        floor = max(floor, kth_best)  # ties with the k-th best stay
    candidates = np.flatnonzero((scores >= floor) & (scores > -np.inf))
    scores = scores[candidates]
    if choice.top_p < 1.0:
        nucleus = _nucleus(scores, choice.top_p)
        candidates, scores = candidates[nucleus], scores[nucleus]
    return candidates, scores


def _nucleus(scores: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Positions of the fewest best scores whose probabilities reach `top_p`; at least one."""
    best_first = np.argsort(-scores, kind="stable")
    weights = np.exp(scores[best_first] - scores[best_first[0]])
    before = np.cumsum(weights) - weights
    size = max(1, int(np.count_nonzero(before < top_p * weights.sum())))
    return np.sort(best_first[:size])


def constrain(logits: FloatArray, choice: Choice) -> FloatArray:
    """Masks, bias and penalties; the very same array when none applies."""
    row = _masked(logits, choice)
    if choice.bias:
        row = row.copy() if row is logits else row
        row[list(choice.bias)] += np.array(list(choice.bias.values()), np.float32)
    has_penalty = choice.presence_penalty or choice.frequency_penalty
    if has_penalty or choice.repetition_penalty != 1.0:
        row = row.copy() if row is logits else row
        _penalise(row, choice)
    return row


def _masked(logits: FloatArray, choice: Choice) -> FloatArray:
    """What may not come is minus infinity. A mask that would leave nothing is passed over."""
    row = logits
    if choice.allowed is not None:
        allowed = np.full_like(row, _NEVER)
        allowed[list(choice.allowed)] = row[list(choice.allowed)]
        row = allowed if allowed.max() > _NEVER else row
    return _without(_without(row, choice.forbidden), choice.forbidden_ends)


def _without(row: FloatArray, token_ids: Sequence[int]) -> FloatArray:
    if not token_ids:
        return row
    rest = row.copy()
    rest[list(token_ids)] = _NEVER
    return rest if rest.max() > _NEVER else row


def _penalise(row: FloatArray, choice: Choice) -> None:
    """Repetition over prompt and output, frequency and presence over the output, in place."""
    if choice.repetition_penalty != 1.0:
        seen = np.unique(np.array(choice.seen, np.int64))
        scores = row[seen]
        penalty = np.float32(choice.repetition_penalty)
        row[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
    if choice.output and (choice.presence_penalty or choice.frequency_penalty):
        ids, counts = np.unique(choice.output, return_counts=True)
        row[ids] -= np.float32(choice.frequency_penalty) * counts.astype(np.float32)
        row[ids] -= np.float32(choice.presence_penalty)


def score_values(row: FloatArray, given: Sequence[int], num_best: int) -> LogprobRow:
    """(token, value, rank) of the given tokens, then of the `num_best` best that can come."""
    scores: LogprobRow = [
        (token_id, float(row[token_id]), int(np.count_nonzero(row >= row[token_id])))
        for token_id in given
    ]
    for rank, best in enumerate(_best(row, min(num_best, len(row))), 1):
        if row[best] == _NEVER:
            break
        scores.append((int(best), float(row[best]), rank))
    return scores


def _best(row: FloatArray, wanted: int) -> NDArray[np.int64]:
    """The ids of the `wanted` largest, best first; of equals the smaller id first."""
    if wanted == 0:
        return np.empty(0, np.int64)
    floor = np.partition(row, -wanted)[-wanted]
    candidates = np.flatnonzero(row >= floor)
    return candidates[np.argsort(-row[candidates], kind="stable")][:wanted]
