"""Steps as arrays, and what is made of them the short way where nothing else is wanted."""

from array import array

import numpy as np
import pytest

from tests.doubles.stepping import make_request
from weft.core.values.types import SamplingParams
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.sequence import Sequence

BLOCK_SIZE = 4
NAMES = ("prompt_lens", "block_tables", "token_ids", "positions", "slots", "logit_rows")


def make_sequence(number, num_tokens):
    """A sequence of so many tokens, and blocks for them; no token and no block is another's."""
    prompt = list(range(100 * number, 100 * number + num_tokens))
    request = make_request(f"r{number}", prompt, SamplingParams())
    sequence = Sequence(request, 0, (0, number))
    sequence.block_ids = array("i", range(10 * number, 10 * number - -num_tokens // BLOCK_SIZE + 1))
    return sequence


def last_token(sequence):
    """The entry of a decode step."""
    return PlannedRows.of(sequence, sequence.num_tokens - 1, 1)


@pytest.mark.parametrize("name", [*NAMES, "query_starts"])
def test_last_tokens_are_the_same_rows_with_a_chunk_beside_them(name):
    """A step that only decodes is put together the short way, and is the beginning of one that does not."""
    decoded = [last_token(make_sequence(number, 6 + number)) for number in (1, 2, 3)]
    chunk = PlannedRows.of(make_sequence(4, 11), 2, 9)
    alone = getattr(Plan(tuple(decoded)).to_batch(BLOCK_SIZE), name)
    beside = getattr(Plan((*decoded, chunk)).to_batch(BLOCK_SIZE), name)
    assert alone.dtype == beside.dtype == np.int32
    assert alone.tolist() == beside[: len(alone)].tolist()
    assert len(alone) == len(decoded) + (name == "query_starts")


def test_a_step_of_last_tokens_takes_each_from_its_own_blocks():
    """Token, place and slot of every row are of its own sequence."""
    decoded = [last_token(make_sequence(number, 6 + number)) for number in (1, 2, 3)]
    batch = Plan(tuple(decoded)).to_batch(BLOCK_SIZE)
    assert batch.token_ids.tolist() == [106, 207, 308]
    assert batch.positions.tolist() == [6, 7, 8]
    assert batch.slots.tolist() == [46, 87, 128]


def test_a_chunk_of_one_token_before_the_end_has_no_logits():
    """As many rows as sequences do not make a step that samples all of them."""
    chunk = PlannedRows.of(make_sequence(1, 8), 2, 1)
    batch = Plan((chunk, last_token(make_sequence(2, 8)))).to_batch(BLOCK_SIZE)
    assert batch.token_ids.tolist() == [102, 207]
    assert batch.logit_rows.tolist() == [1]
