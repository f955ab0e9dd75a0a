"""`NativeSampler`: a `Sampler` of logits in the host's memory, in C++."""

import numpy as np

from weft.compute.masks import flags_of
from weft.compute.native import _core
from weft.compute.processed import processed, score_values
from weft.compute.runner import FloatArray, IntArray
from weft.compute.sampler import (
    Choice,
    Choices,
    Outcome,
    SampledOnHost,
    Scores,
    Scoring,
)
from weft.core.logprobs import LogprobsMode
from weft.core.types import LogprobRow

_NEVER = np.float32(-np.inf)
_PROCESSED = (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)
_LOGITS = (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)


class NativeSampler:
    """See `Sampler`."""

    @staticmethod
    def sample(
        logits: FloatArray, choices: Choices, mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    ) -> SampledOnHost:
        """See `Sampler`."""
        token_ids = np.zeros(len(choices), np.int32)
        for place, row in enumerate(choices.rows):
            token_id = _choose(logits[row], choices[place])
            token_ids[place] = -1 if token_id is None else token_id
        is_finite = token_ids >= 0
        scores = None
        if choices.scoring is not None:
            scores = _score_all(logits, choices, choices.scoring, token_ids, mode)
        return SampledOnHost(Outcome(token_ids, is_finite, scores))


def _choose(row: FloatArray, choice: Choice) -> int | None:
    if not np.isfinite(row.max()):  # NaN spreads through max
        return None
    if choice.forced_token_id is not None:
        return choice.forced_token_id
    return _core.choose(
        np.ascontiguousarray(_masked(row, choice)),
        None if choice.allowed is None else np.array(choice.allowed, np.int32),
        np.array(choice.forbidden, np.int32),
        np.array(choice.forbidden_ends, np.int32),
        np.array(list(choice.bias), np.int32),
        np.array(list(choice.bias.values()), np.float32),
        np.array(choice.seen, np.int32),
        np.array(choice.output, np.int32),
        choice,
    )


def _masked(row: FloatArray, choice: Choice) -> FloatArray:
    if choice.mask is None:
        return row
    return np.where(flags_of(choice.mask, len(row)), row, _NEVER)


def _score_all(
    logits: FloatArray, choices: Choices, scoring: Scoring, token_ids: IntArray, mode: LogprobsMode
) -> Scores:
    rows: list[LogprobRow | None] = []
    for i in range(len(scoring)):
        row, given = logits[scoring.rows[i]], scoring.given[i].tolist()
        place = scoring.choices[i]
        if place >= 0 and token_ids[place] < 0:
            rows.append(None)
            continue
        if place >= 0:
            choice = choices[place]
            row = _masked(row, choice)
            given = [token_ids[place].item(), *given]
            if mode in _PROCESSED:
                row = processed(row, _effective(choice))
        num_best = len(row) if scoring.num_best[i] < 0 else scoring.num_best[i].item()
        rows.append(_score(row, given, num_best, mode))
    starts = np.cumsum([0, *(len(row or ()) for row in rows)], dtype=np.int32)
    flat = [entry for row in rows for entry in row or ()]
    found, values, ranks = zip(*flat, strict=True) if flat else ((), (), ())
    return Scores(
        starts,
        np.array(found, np.int32),
        np.array(values, np.float32),
        np.array(ranks, np.int32),
        np.array([row is not None for row in rows], np.bool_),
    )


def _score(
    row: FloatArray, given: list[int], num_best: int, mode: LogprobsMode
) -> LogprobRow | None:
    if not np.isfinite(row.max()):
        return None
    if mode in _LOGITS:
        return score_values(row, given, num_best)
    scores = _core.score(np.ascontiguousarray(row), np.array(given, np.int32), num_best)
    return None if scores is None else list(zip(*scores, strict=True))


def _effective(choice: Choice) -> Choice:
    token_id = choice.forced_token_id
    return choice if token_id is None else Choice(allowed=[token_id])
