"""Flat log-probabilities read like the lists they stand for."""

import gc

from weft.core.values.logprobs import FlatLogprobs
from weft.core.values.types import Logprob

POSITIONS = [
    None,
    {5: Logprob(-0.5, 1, "a"), 7: Logprob(-1.5, 2, None)},
    {7: Logprob(-0.25, 1, "b")},
]


def flat(positions):
    """The same, flat."""
    made = FlatLogprobs()
    for position in positions:
        made.append(position)
    return made


def test_it_reads_like_the_list():
    """By index from either end, by slice, by iteration; and it equals the list."""
    made = flat(POSITIONS)
    assert len(made) == 3
    assert made == POSITIONS
    assert [made[i] for i in (0, 1, -1)] == [POSITIONS[0], POSITIONS[1], POSITIONS[-1]]
    assert made[1:] == POSITIONS[1:]
    assert isinstance(made[1:], FlatLogprobs)
    assert list(made) == POSITIONS
    assert made != POSITIONS[:2]
    assert made[3:] == []


def test_its_columns_are_plain_numbers():
    """Under the names that other engines give them."""
    made = flat(POSITIONS)
    assert (made.start_indices.tolist(), made.end_indices.tolist()) == ([0, 0, 2], [0, 2, 3])
    assert made.token_ids.tolist() == [5, 7, 7]
    assert made.logprobs.tolist() == [-0.5, -1.5, -0.25]
    assert made.ranks.tolist() == [1, 2, 1]
    assert made.decoded_tokens == ["a", None, "b"]


def test_the_collector_has_nothing_to_walk():
    """A thousand positions are as many objects as one."""
    made = flat(POSITIONS)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        made.append({1: Logprob(-0.5, 1, None)})
    gc.collect()
    assert len(gc.get_objects()) - before < 50
