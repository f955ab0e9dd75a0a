"""Choosing and scoring natively gives what the numpy twin gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.doubles.sampling import choose, choose_natively, logprob_row, score_natively
from tests.doubles.stepping import make_request
from weft.compute.protocols.sampler import Choice
from weft.core.values.types import SamplingParams
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step.step_choices import to_choice

MAYBE = st.booleans()


def make_row(rng, vocab_size, spread, num_masked, step=0.0):
    """`step` makes many logits equal."""
    row = (rng.standard_normal(vocab_size) * spread).astype(np.float32)
    if step:
        row = (np.round(row / step) * step).astype(np.float32)
    row[rng.permutation(vocab_size)[: min(num_masked, vocab_size - 1)]] = -np.inf
    return row


def make_sequence(rng, vocab_size, params, eos_token_ids=(), **more):
    prompt = rng.integers(0, vocab_size, 5).tolist()
    output = rng.integers(0, vocab_size, int(rng.integers(0, 12))).tolist()
    request = replace(make_request("r", prompt, params), eos_token_ids=eos_token_ids, **more)
    return Sequence(request=request, index=0, order=(0, 0), token_ids=[*prompt, *output])


@settings(max_examples=400, deadline=None)
@given(
    random=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([1, 2, 15, 16, 17, 64, 65, 300, 1500, 5000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 8.0, 300.0]),
    step=st.sampled_from([0.0, 0.5]),
    num_masked=st.sampled_from([0, 0, 10, 4000]),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 1.7, 50.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 20, 100, 2000]),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999, 0.9999999999]),
    penalties=st.sampled_from(
        [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, 0.5, -0.3), (1.0, 0.0, 1.5)]
    ),
    has=st.tuples(MAYBE, MAYBE, MAYBE),
)
def test_a_choice_is_the_twin_s(
    random, vocab_size, spread, step, num_masked, temperature, min_p, top_k, top_p, penalties, has
):
    """Whatever is masked, biased, penalised and cut off, on any shape of distribution."""
    rng = np.random.default_rng(random)
    row = make_row(rng, vocab_size, spread, num_masked, step)
    some = rng.integers(0, vocab_size, 4).tolist()
    params = SamplingParams(
        seed=int(rng.integers(0, 2**31)),
        temperature=temperature,
        min_p=min_p,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=penalties[0],
        frequency_penalty=penalties[1],
        presence_penalty=penalties[2],
        allowed_token_ids=rng.integers(0, vocab_size, 30).tolist() if has[0] else None,
        logit_bias={token: 1.5 * place - 2 for place, token in enumerate(some)} if has[1] else None,
        min_tokens=8 if has[2] else 0,
        stop_token_ids=some[:2],
    )
    words = [[some[0]], [some[1], some[2]]] if has[2] else []
    sequence = make_sequence(rng, vocab_size, params, (some[3],), bad_token_ids=words)
    assert choose_natively(row, to_choice(sequence)) == choose(row, sequence)


@pytest.mark.parametrize(
    "settings_",
    [
        {"top_p": 0.9},
        {"top_p": 0.9, "temperature": 3.0},
        {"top_k": 50},
        {"top_k": 50, "top_p": 0.8},
        {"min_p": 0.02},
        {"min_p": 0.02, "top_p": 0.95, "repetition_penalty": 1.1},
    ],
)
def test_many_seeds_choose_what_the_twin_chooses(settings_):
    """From a vocabulary of real size."""
    rng = np.random.default_rng(1)
    row = make_row(rng, 50_000, 2.0, 0)
    chosen = []
    for seed in range(15):
        params = SamplingParams(seed=seed, **settings_)
        sequence = make_sequence(np.random.default_rng(2), 50_000, params)
        chosen.append(choose_natively(row, to_choice(sequence)))
        assert chosen[-1] == choose(row, sequence)
    assert len(set(chosen)) > 5


@settings(max_examples=300, deadline=None)
@given(
    random=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([1, 2, 15, 16, 17, 64, 65, 300, 5000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 8.0, 300.0]),
    step=st.sampled_from([0.0, 0.5]),
    num_masked=st.sampled_from([0, 0, 10, 4000]),
    num_top=st.sampled_from([0, 1, 5, 20, 100, -1]),
)
def test_log_probabilities_are_the_twin_s(random, vocab_size, spread, step, num_masked, num_top):
    """Up to the last bit, for the sum has another order; of equals the smaller token comes first."""
    rng = np.random.default_rng(random)
    row = make_row(rng, vocab_size, spread, num_masked, step)
    token = int(rng.integers(0, vocab_size))
    num_best = vocab_size if num_top == -1 else num_top
    ours, twin = (
        score_natively(row, [token], num_best),
        logprob_row(row, token, num_top),
    )
    assert ours is not None
    assert [(token, rank) for token, _, rank in ours] == [(token, rank) for token, _, rank in twin]
    # One that is nearly 0 is the logarithm of nearly 1, of which float64 knows 16 places.
    expected = pytest.approx([value for _, value, _ in twin], rel=2**-23, abs=1e-14)
    assert [value for _, value, _ in ours] == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 1999])
def test_a_row_that_is_not_finite_is_reported(place, value):
    """NaN anywhere, or an infinite best: there is nothing to choose and no probability."""
    row = np.zeros(2000, np.float32)
    row[place] = value
    assert choose_natively(row, Choice(temperature=1.0)) is None
    assert score_natively(row, [1], 3) is None


@pytest.mark.parametrize("field", ["allowed", "forbidden", "forbidden_ends", "seen", "output"])
@pytest.mark.parametrize("token", [-1, 10])
def test_a_token_beyond_the_row_is_refused(field, token):
    """Nothing is written out of bounds, whatever a caller overlooked."""
    with pytest.raises(ValueError, match=field):
        choose_natively(np.zeros(10, np.float32), Choice(**{field: [token]}))
    with pytest.raises(ValueError, match="biased"):
        choose_natively(np.zeros(10, np.float32), Choice(bias={token: 1.0}))
    with pytest.raises(ValueError, match="given"):
        score_natively(np.zeros(10, np.float32), [token])


def test_a_mask_that_leaves_nothing_is_passed_over():
    """What was there before is there again."""
    row = np.array([1, 3, -np.inf, 2], np.float32)
    assert choose_natively(row, Choice(allowed=[2])) == 1
    assert choose_natively(row, Choice(forbidden=[0, 1, 1, 3])) == 1
    assert choose_natively(row, Choice(forbidden=[1, 3], forbidden_ends=[0])) == 0
