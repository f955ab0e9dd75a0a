"""The sampler: from a step's logits to tokens and log-probabilities, row by row in native code.

`choose` and `logprob_row` are the same in numpy: they say what is computed, and tests hold the native
code to them.

Each row is handled alone and in full, so it cannot depend on the rows beside it. The order of
transformations is the one users of this field expect: masks, bias, penalties, then temperature,
min-p, top-k, top-p, then the draw. Log-probabilities are of the model's own logits, before all that,
unless the engine's mode says otherwise; but where there is a grammar, what it does not allow has no
probability for them either.
"""

import itertools
import logging

import numpy as np
from numpy.typing import NDArray

from weft.compute.native import choose_token, draw_rows, score_tokens
from weft.compute.runner import FloatArray
from weft.core.types import LogprobsMode, SamplingParams
from weft.engine.constraints.grammar import GrammarFailed
from weft.engine.messages import LogprobRow
from weft.engine.sampling.choosing import bad_ends, early_ends, to_choice
from weft.engine.sampling.noise import gumbel, noise_key
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.sampled import Sampled, SampledRow
from weft.engine.scheduling.sequence import Sequence

log = logging.getLogger("weft.engine")

Row = NDArray[np.float32]  # [vocab]

_CORRUPT = SampledRow(error="the model produced logits that are not numbers", is_corrupt=True)
_NEVER = np.float32(-np.inf)


def sample(
    logits: FloatArray, plan: Plan, mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
) -> Sampled:
    """Choose a token for every entry that reaches its sequence's end, and score what was asked for."""
    counts = [entry.num_scored + entry.samples for entry in plan.entries]
    ends = list(itertools.accumulate(counts))
    assert (ends[-1] if ends else 0) == len(logits), (ends, len(logits))
    plain = {
        place: end - 1
        for place, (entry, end) in enumerate(zip(plan.entries, ends, strict=True))
        if is_plain(entry, logits.shape[1])
    }
    drawn = _draw_plain(logits, [plan.entries[place] for place in plain], list(plain.values()))
    drawn_by_place = dict(zip(plain, drawn, strict=True))
    rows = [
        drawn_by_place.get(place) or _sample_entry(logits[end - count : end], entry, mode)
        for place, (entry, count, end) in enumerate(zip(plan.entries, counts, ends, strict=True))
    ]
    # Of a list: from a generator the tuple is made for ten and then cut, so each step leaves CPython one
    # more spare tuple of its size, up to two thousand of each. In 36,000 requests that was 3 MiB.
    return Sampled(tuple(rows))


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


def _draw_plain(
    logits: FloatArray, entries: list[PlannedRows], rows: list[int]
) -> list[SampledRow]:
    """All plain entries in one native call; the same tokens as `choose`, without its passes in numpy."""
    if not rows:
        return []
    sequences = [entry.sequence for entry in entries]
    drawn = draw_rows(
        logits if len(rows) == len(logits) else logits[rows],
        [0.0 if s.params.is_greedy else s.params.temperature for s in sequences],
        [0 if s.params.is_greedy else noise_key(s.seed, s.num_output_tokens) for s in sequences],
    )
    return [
        SampledRow(token_id=token_id) if is_finite else _CORRUPT
        for token_id, is_finite in zip(
            drawn.token_ids.tolist(), drawn.is_finite.tolist(), strict=True
        )
    ]


def _sample_entry(logits: FloatArray, entry: PlannedRows, mode: LogprobsMode) -> SampledRow:
    sequence = entry.sequence
    try:
        if not np.isfinite(logits.max(axis=-1)).all():  # NaN spreads through max
            return _CORRUPT
        prompt_logprobs = [
            _score(
                row,
                [sequence.token_ids[entry.start + i + 1]],
                sequence.params.prompt_logprobs,
                mode,
            )
            for i, row in enumerate(logits[: entry.num_scored])
        ]
        if not entry.samples:
            return SampledRow(prompt_logprobs=prompt_logprobs)
        row = logits[-1]
        grammar = sequence.ruling_grammar
        if grammar is not None:
            row = np.where(grammar.mask(), row, _NEVER)
        token_id = _next_token(row, sequence)
        if token_id is None:
            return _CORRUPT
        return SampledRow(
            token_id=token_id,
            logprobs=_logprobs(row, token_id, sequence, mode),
            prompt_logprobs=prompt_logprobs,
        )
    except GrammarFailed as failure:
        return SampledRow(error=f"the grammar cannot be followed any further: {failure}")
    except Exception:
        log.exception("sampling failed: request_id=%s", sequence.request.request_id)
        return SampledRow(error="internal error while sampling")


def _next_token(row: Row, sequence: Sequence) -> int | None:
    """As `choose`; None where nothing can be chosen from the row."""
    if sequence.forced_token_id is not None:
        return sequence.forced_token_id
    return choose_token(row, to_choice(sequence))


def choose(logits: Row, sequence: Sequence) -> int:
    """The next token of one sequence. `logits` is left as it is."""
    if sequence.forced_token_id is not None:
        return sequence.forced_token_id
    params = sequence.params
    row = _constrain(logits, sequence)
    if params.is_greedy:
        return int(row.argmax())
    candidates, scores = truncate(row, params)
    noise = gumbel(sequence.seed, sequence.num_output_tokens, candidates)
    return int(candidates[(scores + noise).argmax()])


def truncate(row: Row, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The token ids that may be drawn, ascending, and their logits divided by the temperature."""
    scores = row.astype(np.float64) / params.temperature
    floor = np.float64(-np.inf)
    if params.min_p > 0:
        floor = scores.max() + np.log(params.min_p)
    if 0 < params.top_k < len(scores):
        kth_best = np.partition(scores, -params.top_k)[-params.top_k]
        floor = max(floor, kth_best)  # ties with the k-th best stay
    candidates = np.flatnonzero((scores >= floor) & (scores > -np.inf))
    scores = scores[candidates]
    if params.top_p < 1.0:
        kept = _nucleus(scores, params.top_p)
        candidates, scores = candidates[kept], scores[kept]
    return candidates, scores


def _nucleus(scores: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Positions of the fewest best scores whose probabilities reach `top_p`; at least one."""
    best_first = np.argsort(-scores, kind="stable")
    weights = np.exp(scores[best_first] - scores[best_first[0]])
    before = np.cumsum(weights) - weights
    num_kept = max(1, int(np.count_nonzero(before < top_p * weights.sum())))
    return np.sort(best_first[:num_kept])


def _logprobs(row: Row, token_id: int, sequence: Sequence, mode: LogprobsMode) -> LogprobRow | None:
    params = sequence.params
    if params.logprobs is None:
        return None
    if mode in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS):
        row = _processed(row, sequence)
    if params.logprob_token_ids is None:
        return _score(row, [token_id], params.logprobs, mode)
    return _score(row, [token_id, *params.logprob_token_ids], 0, mode)


def _score(row: Row, token_ids: list[int], num_top: int | None, mode: LogprobsMode) -> LogprobRow:
    """As `logprob_row`, of several tokens; logits are given as they are, in numpy."""
    assert num_top is not None
    if mode in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS):
        given = [_ranked(row, token_id) for token_id in token_ids]
        return given + logprob_row(row, token_ids[0], num_top, mode)[1:]
    scores = score_tokens(row, token_ids, len(row) if num_top == -1 else num_top)
    assert scores is not None  # rows that are no numbers were refused before
    return scores


def _processed(row: Row, sequence: Sequence) -> Row:
    """The row as the draw saw it: what cannot be drawn is minus infinity."""
    left = np.full_like(row, _NEVER)
    if sequence.forced_token_id is not None:
        left[sequence.forced_token_id] = row[sequence.forced_token_id]
        return left
    constrained = _constrain(row, sequence)
    if sequence.params.is_greedy:
        return constrained
    candidates, scores = truncate(constrained, sequence.params)
    left[candidates] = scores.astype(np.float32)
    return left


def logprob_row(
    logits: Row,
    token_id: int,
    num_top: int | None,
    mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
) -> LogprobRow:
    """The token's own log-probability first, then the `num_top` best (-1: the whole vocabulary).

    Of tokens that cannot come, whose log-probability is minus infinity, none is among the best.
    """
    assert num_top is not None
    values = _values(logits, mode)
    rows = [_ranked(values, token_id)]
    wanted = len(values) if num_top == -1 else min(num_top, len(values))
    for rank, best in enumerate(_best(values, wanted), 1):
        if values[best] == _NEVER:
            break
        rows.append((int(best), float(values[best]), rank))
    return rows


def _values(logits: Row, mode: LogprobsMode) -> Row:
    is_logits = mode in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)
    return logits if is_logits else _log_softmax(logits)


def _log_softmax(logits: Row) -> Row:
    largest = logits.max()
    log_sum = np.log(np.exp(logits - largest, dtype=np.float64).sum())
    logprobs: Row = (logits.astype(np.float64) - largest - log_sum).astype(np.float32)
    return logprobs


def _ranked(logprobs: Row, token_id: int) -> tuple[int, float, int]:
    own = logprobs[token_id]
    return token_id, float(own), int(np.count_nonzero(logprobs >= own))


def _best(logprobs: Row, wanted: int) -> NDArray[np.int64]:
    """The ids of the `wanted` largest, best first; of equals the smaller id first."""
    if wanted == 0:
        return np.empty(0, np.int64)
    floor = np.partition(logprobs, -wanted)[-wanted]
    candidates = np.flatnonzero(logprobs >= floor)
    return candidates[np.argsort(-logprobs[candidates], kind="stable")][:wanted]


def _constrain(logits: Row, sequence: Sequence) -> Row:
    """Masks, bias and penalties; the very same array when none applies."""
    params = sequence.params
    row = _masked(logits, sequence)
    if params.logit_bias:
        row = row.copy() if row is logits else row
        row[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), np.float32)
    has_penalty = params.presence_penalty or params.frequency_penalty
    if has_penalty or params.repetition_penalty != 1.0:
        row = row.copy() if row is logits else row
        _penalise(row, sequence)
    return row


def _masked(logits: Row, sequence: Sequence) -> Row:
    """What may not come is minus infinity. A mask that would leave nothing is passed over."""
    params = sequence.params
    row = logits
    if params.allowed_token_ids is not None:
        allowed = np.full_like(row, _NEVER)
        allowed[params.allowed_token_ids] = row[params.allowed_token_ids]
        row = allowed if allowed.max() > _NEVER else row
    if sequence.request.bad_token_ids:
        row = _without(row, bad_ends(sequence))
    return _without(row, early_ends(sequence))


def _without(row: Row, token_ids: list[int]) -> Row:
    if not token_ids:
        return row
    rest = row.copy()
    rest[token_ids] = _NEVER
    return rest if rest.max() > _NEVER else row


def _penalise(row: Row, sequence: Sequence) -> None:
    """Repetition over prompt and output, frequency and presence over the output, in place."""
    params = sequence.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(sequence.token_ids)
        scores = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
    if sequence.num_output_tokens and (params.presence_penalty or params.frequency_penalty):
        ids, counts = np.unique(sequence.output_token_ids, return_counts=True)
        row[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        row[ids] -= np.float32(params.presence_penalty)
