"""Random choices and scorings of random rows, and whether a sampler gives what its twin in numpy gives."""

import numpy as np

from tests.doubles.sampling import sample
from weft.compute.protocols.masks import mask_of
from weft.compute.protocols.sampler import Choice, Choices, Lists, Scoring
from weft.core.values.logprobs import LogprobsMode


def check_against_twin(sampler, to_device, rng, vocab_sizes):
    """One call, drawn from `rng`: the same tokens, the same scored tokens and ranks, values within rounding."""
    logits = _rows(rng, int(rng.choice(vocab_sizes)))
    count, vocab_size = logits.shape
    rows = rng.integers(0, count, int(rng.integers(1, 6))).tolist()
    choices = [_choice(rng, vocab_size) for _ in rows]
    mode = list(LogprobsMode)[int(rng.integers(4))]
    asked = Choices.of(rows, choices, _scoring(rng, rows, count, vocab_size))
    with np.errstate(all="ignore"):
        tokens, scores = sample(logits, asked, mode)
    outcome = sampler.sample(to_device(logits), asked, mode).result()
    found = zip(outcome.token_ids.tolist(), outcome.is_finite.tolist(), strict=True)
    assert [token if is_finite else None for token, is_finite in found] == tokens
    if asked.scoring is not None:
        for got, expected in zip(outcome.scores.rows(), scores, strict=True):
            _check_scores(got, expected)


def _check_scores(got, expected):
    assert (got is None) == (expected is None)
    if got is not None:
        assert [(token, rank) for token, _, rank in got] == [(t, rank) for t, _, rank in expected]
        values = [value for _, value, _ in got], [value for _, value, _ in expected]
        assert np.allclose(*values, atol=1e-6, rtol=1e-6)


def _rows(rng, vocab_size):
    logits = rng.standard_normal((int(rng.integers(1, 5)), vocab_size)) * rng.choice([0.01, 1, 8])
    logits = logits.astype(np.float32)
    if rng.random() < 0.4:  # many are equal
        logits = (np.round(logits * 2) / 2).astype(np.float32)
    if rng.random() < 0.2:
        logits[0, 0] = np.nan
    if rng.random() < 0.2:
        logits[-1] = -np.inf
    return logits


def _choice(rng, vocab_size):
    def may(share):
        return rng.random() < share

    def tokens(count):
        return rng.integers(0, vocab_size, count).tolist()

    return Choice(
        mask=mask_of(rng.random(vocab_size) < 0.5) if may(0.2) else None,
        forced_token_id=int(rng.integers(vocab_size)) if may(0.2) else None,
        allowed=tokens(5) if may(0.2) else None,
        forbidden=tokens(4) if may(0.2) else (),
        forbidden_ends=tokens(3) if may(0.2) else (),
        bias=dict(zip(tokens(3), [1.5, -2.0, 0.3], strict=True)) if may(0.2) else {},
        seen=tokens(6) if may(0.5) else (),
        output=tokens(6) if may(0.5) else (),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
        frequency_penalty=float(rng.choice([0.0, 0.5])),
        presence_penalty=float(rng.choice([0.0, -0.3])),
        temperature=float(rng.choice([0.0, 0.7, 1.0, 1.7])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 1.0])),
        top_k=int(rng.choice([0, 0, 1, 5, 100])),
        top_p=float(rng.choice([1.0, 0.9, 0.5, 0.01])),
        key=int(rng.integers(0, 2**63)) * 2 + 1,
    )


def _scoring(rng, rows, count, vocab_size):
    size = int(rng.integers(0, 4))
    if not size:
        return None
    choices = rng.integers(-1, len(rows), size)
    own = [rows[c] if c >= 0 else int(rng.integers(count)) for c in choices]
    given = [rng.integers(0, vocab_size, int(rng.integers(0, 3))).tolist() for _ in choices]
    num_best = rng.choice([-1, 0, 1, 3, 70], size)
    return Scoring(
        np.array(own, np.int32),
        choices.astype(np.int32),
        Lists.of(given),
        num_best.astype(np.int32),
    )
