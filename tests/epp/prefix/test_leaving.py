"""Endpoints that leave the pool with much that they held."""

import asyncio

from tests.epp.pools import make_pool, spec
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.approximate import ApproximateIndex
from weft.epp.prefix.leaving import Leaving

MANY = 200_000


def replaced(pool, *numbers: int) -> list[Endpoint]:
    pool.replace("test", [(each, each.address) for each in map(spec, numbers)])
    return list(pool)


async def test_a_large_index_is_cleared_while_others_have_their_turn():
    """And its slot is nobody else's before that: the next endpoint would hold what the old one did."""
    pool, index = make_pool(spec(1)), ApproximateIndex()
    Leaving(pool, index.remove_some)
    (first,) = pool
    index.add(first, range(MANY), capacity=MANY)

    (second,) = replaced(pool, 2)

    assert index.num_blocks(first) > MANY // 2
    assert second.slot != first.slot
    turns = 0
    while index.num_blocks(first):
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1
    assert len(index) == 0
    await asyncio.sleep(0)  # the task ends
    await asyncio.sleep(0)
    assert replaced(pool, 2, 3)[-1].slot == first.slot


def test_a_small_one_is_cleared_at_once():
    """Without a task, and the slot is free."""
    pool, index = make_pool(spec(1)), ApproximateIndex()
    Leaving(pool, index.remove_some)
    (first,) = pool
    index.add(first, range(100), capacity=100)
    (second,) = replaced(pool, 2)
    assert len(index) == 0
    assert second.slot == first.slot


async def test_closing_ends_it():
    """In the middle of a large one."""
    pool, index = make_pool(spec(1)), ApproximateIndex()
    leaving = Leaving(pool, index.remove_some)
    (first,) = pool
    index.add(first, range(MANY), capacity=MANY)
    replaced(pool)
    await leaving.aclose()
    assert index.num_blocks(first) > 0
