"""Drawing natively gives the tokens that the numpy twin gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.sampling import choose
from tests.doubles.stepping import make_request
from weft.compute.native import NativeSampler
from weft.compute.protocols.sampler import Choices
from weft.core.values.types import SamplingParams
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step.step_choices import noise_key


def draw_rows(rows, temperatures, keys):
    """What comes natively of each row by temperature alone."""
    choices = Choices(
        rows=np.arange(len(rows), dtype=np.int32),
        temperatures=np.array(temperatures, np.float64),
        keys=np.array(keys, np.uint64),
    )
    return NativeSampler.sample(rows, choices).result()


def twin(row, temperature, seed):
    """What numpy chooses from the row."""
    params = SamplingParams(seed=seed, temperature=temperature)
    request = make_request("r", [1, 2], params)
    return choose(row, Sequence(request=request, index=0, order=(0, 0), token_ids=[1, 2]))


@settings(max_examples=200, deadline=None)
@given(
    random=st.integers(0, 2**32 - 1),
    vocab_size=st.integers(1, 3000),
    temperature=st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.7, 50.0]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 8.0, 300.0]),
    num_masked=st.integers(0, 2000),
)
def test_a_draw_is_the_twin_s(random, vocab_size, temperature, spread, num_masked):
    """Any size, temperature and shape of distribution, with masked tokens and equal logits."""
    rng = np.random.default_rng(random)
    row = (rng.standard_normal(vocab_size) * spread).astype(np.float32)
    row[rng.permutation(vocab_size)[: min(num_masked, vocab_size - 1)]] = -np.inf
    seed = int(rng.integers(0, 2**31))
    drawn = draw_rows(row[None], [temperature], [noise_key(seed, 0)])
    assert drawn.is_finite.tolist() == [True]
    assert drawn.token_ids.tolist() == [twin(row, temperature, seed)]


def test_many_seeds_draw_what_the_twin_draws():
    """Row by row of a batch, each with its own noise, from a vocabulary of real size."""
    rng = np.random.default_rng(1)
    row = (rng.standard_normal(50_000) * 2).astype(np.float32)
    keys = [noise_key(seed, 0) for seed in range(60)]
    drawn = draw_rows(np.tile(row, (60, 1)), [1.0] * 60, keys)
    assert drawn.token_ids.tolist() == [twin(row, 1.0, seed) for seed in range(60)]
    assert len(set(drawn.token_ids.tolist())) > 30


def test_of_equal_logits_the_first_is_best():
    """As numpy's argmax has it."""
    row = np.zeros((1, 100), np.float32)
    row[0, [40, 41, 90]] = 3.0
    assert draw_rows(row, [0.0], [0]).token_ids.tolist() == [40]


@pytest.mark.parametrize("place", [0, 17, 1023, 1024, 1999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_reported(place, value):
    """NaN anywhere, or an infinite best; the rows beside it are chosen from."""
    rows = np.zeros((3, 2000), np.float32)
    rows[1, place] = value
    assert draw_rows(rows, [1.0] * 3, [5] * 3).is_finite.tolist() == [
        True,
        False,
        True,
    ]


def test_a_row_without_any_token_is_reported():
    """Minus infinity throughout leaves nothing to choose."""
    rows = np.full((1, 70), -np.inf, np.float32)
    assert draw_rows(rows, [0.0], [0]).is_finite.tolist() == [False]
