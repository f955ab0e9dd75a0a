"""A step sampled natively, in one call, gives what the numpy twin gives row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.sampling import sample as twin
from weft.compute.native import NativeSampler, _core, available_cpus
from weft.compute.protocols.masks import mask_of
from weft.compute.protocols.sampler import Choice, Choices, Lists, Scoring
from weft.core.values.logprobs import LogprobsMode

VOCAB = 300
TOO_LARGE = VOCAB


@pytest.fixture(autouse=True)
def threads():
    """As many as there were, afterwards."""
    yield
    _core.use_sampling_threads(available_cpus())


def make_logits(rng, num_rows, vocab=VOCAB):
    """Rows in which some logits are equal, and some cannot come."""
    rows = (np.round(rng.standard_normal((num_rows, vocab)) * 6) / 2).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = -np.inf
    rows[:, 0] = 0.5
    return rows


def make_choice(rng, vocab=VOCAB):
    """A choice in which each part is there or not."""

    def some(most=5):
        return rng.integers(0, vocab, rng.integers(0, most)).tolist() if rng.random() < 0.4 else []

    def maybe(value, neutral):
        return value if rng.random() < 0.4 else neutral

    mask = np.ones(vocab, bool)
    mask[1:] = rng.random(vocab - 1) < 0.6
    return Choice(
        mask=maybe(mask_of(mask), None),
        forced_token_id=maybe(int(rng.integers(0, vocab)), None) if rng.random() < 0.2 else None,
        allowed=some(60) or None,
        forbidden=some(),
        forbidden_ends=some(),
        bias={token: float(rng.integers(-4, 5)) for token in some()},
        seen=some(40),
        output=some(40),
        repetition_penalty=maybe(1.3, 1.0),
        frequency_penalty=maybe(0.5, 0.0),
        presence_penalty=maybe(-0.7, 0.0),
        temperature=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
        min_p=maybe(0.05, 0.0),
        top_k=maybe(int(rng.integers(1, 40)), 0),
        top_p=maybe(float(rng.choice([0.05, 0.5, 0.9])), 1.0),
        key=int(rng.integers(0, 2**63)),
    )


def make_step(rng, num_rows=4):
    """Logits and choices from them, of which some are scored, and rows that are only scored."""
    choices = [make_choice(rng) for _ in range(num_rows)]
    scored = [(row, row) for row in range(num_rows) if rng.random() < 0.5]
    scored += [(int(rng.integers(0, num_rows)), -1) for _ in range(2)]
    scoring = Scoring(
        np.array([row for row, _ in scored], np.int32),
        np.array([choice for _, choice in scored], np.int32),
        Lists.of([rng.integers(0, VOCAB, rng.integers(0, 3)).tolist() for _ in scored]),
        rng.choice([-1, 0, 3, 50], len(scored)).astype(np.int32),
    )
    return make_logits(rng, num_rows), Choices.of(range(num_rows), choices, scoring)


def same(ours, expected):
    """Whether rows of scores are alike: the values to float32's last bits, the rest exactly."""
    if ours is None or expected is None:
        return ours is expected
    names = [[(token, rank) for token, _, rank in row] for row in (ours, expected)]
    values = [[value for _, value, _ in row] for row in (ours, expected)]
    return names[0] == names[1] and values[0] == pytest.approx(values[1], rel=1e-6, abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(random=st.integers(0, 2**32 - 1), mode=st.sampled_from(list(LogprobsMode)))
def test_a_step_is_the_twin_s_row_by_row(random, mode):
    """Tokens to the bit, whatever is asked of the rows beside; scores with their ranks, in every mode."""
    logits, choices = make_step(np.random.default_rng(random))
    outcome = NativeSampler.sample(logits, choices, mode).result()
    tokens, scores = twin(logits, choices, mode)
    ours = zip(outcome.token_ids.tolist(), outcome.is_finite.tolist(), strict=True)
    assert [token if is_finite else None for token, is_finite in ours] == tokens
    assert outcome.scores is not None
    assert all(map(same, outcome.scores.rows(), scores))


def test_a_row_gives_the_same_alone_and_by_any_number_of_threads():
    """No row looks at another, and none is divided."""
    logits, choices = make_step(np.random.default_rng(5), 40)
    outcomes = []
    for num_threads in (1, 2, 3):
        _core.use_sampling_threads(num_threads)
        outcomes.append(NativeSampler.sample(logits, choices).result())
    alone = [
        NativeSampler.sample(logits, Choices.of([row], [choices[row]])).result().token_ids[0]
        for row in range(40)
    ]
    assert alone == outcomes[0].token_ids.tolist()
    for other in outcomes[1:]:
        assert np.array_equal(other.token_ids, outcomes[0].token_ids)
        assert other.scores.rows() == outcomes[0].scores.rows()


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.95, 0.999])
def test_a_nucleus_of_a_large_vocabulary_is_the_twin_s(spread, top_p):
    """Wherever it ends: in a flat distribution, where all are equal, and in a steep one."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((1, 20_000)) * spread).astype(np.float32)
    keys = [Choice(temperature=1.0, top_p=top_p, key=key) for key in range(25)]
    choices = Choices.of([0] * len(keys), keys)
    assert (
        NativeSampler.sample(logits, choices).result().token_ids.tolist()
        == twin(logits, choices)[0]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(value):
    """Rows beside it are chosen from and scored as ever; of it there is nothing."""
    rng = np.random.default_rng(8)
    logits = make_logits(rng, 3)
    logits[1, 77] = value
    scoring = Scoring(
        np.arange(3, dtype=np.int32),
        np.array([0, 1, -1], np.int32),
        Lists.of([[], [], [5]]),
        np.ones(3, np.int32),
    )
    choices = Choices.of(range(3), [Choice(temperature=1.0, top_p=0.9)] * 3, scoring)
    outcome = NativeSampler.sample(logits, choices).result()
    assert outcome.is_finite.tolist() == [True, False, True]
    assert outcome.scores.is_finite.tolist() == [True, False, True]
    assert [row and len(row) for row in outcome.scores.rows()] == [2, None, 2]


def test_a_mask_that_leaves_no_token_is_no_row():
    """A grammar's mask is not passed over; a token that is forced comes all the same."""
    logits = np.full((1, 40), -np.inf, np.float32)
    logits[0, :8] = 1.0
    mask = mask_of(np.arange(40) >= 8)
    chosen = NativeSampler.sample(logits, Choices.of([0], [Choice(mask=mask)])).result()
    assert chosen.is_finite.tolist() == [False]
    forced = Choices.of([0], [Choice(mask=mask, forced_token_id=9)])
    assert NativeSampler.sample(logits, forced).result().token_ids.tolist() == [9]


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"rows": np.array([2], np.int32)}, "rows"),
        ({"temperatures": np.array([np.nan])}, "temperatures"),
        ({"keys": np.empty(0, np.uint64)}, "keys"),
        ({"top_p": np.ones(2)}, "top_p"),
        ({"top_k": np.ones(1)}, "top_k"),
        ({"forced_token_ids": np.array([TOO_LARGE], np.int32)}, "forced_token_ids"),
        ({"seen": Lists.of([[TOO_LARGE]])}, "seen"),
        ({"allowed": Lists.of([[1], [2]])}, "allowed"),
        ({"biased": Lists.of([[1]])}, "bias"),
        ({"masks": np.zeros((1, 3), np.uint32), "masked": np.zeros(1, np.int32)}, "masks"),
        ({"masks": np.zeros((1, 10), np.uint32), "masked": np.ones(1, np.int32)}, "masked"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(broken, field):
    """Before a row is touched."""
    whole = {
        "rows": np.zeros(1, np.int32),
        "temperatures": np.zeros(1),
        "keys": np.zeros(1, np.uint64),
    }
    with pytest.raises(ValueError, match=field):
        NativeSampler.sample(np.zeros((2, VOCAB), np.float32), Choices(**whole | broken))
