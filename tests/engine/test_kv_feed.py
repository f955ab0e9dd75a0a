"""The ring of prefix-cache changes is bounded by what it weighs, not only by how many they are."""

import asyncio
import gc
import tracemalloc
from contextlib import aclosing

import pytest

from weft.core.errors import EngineDead, Overloaded
from weft.core.observe.kv_feed import MAX_BUFFERED_BATCHES, MAX_BUFFERED_BYTES, KvEventFeed
from weft.core.values.kv_cache import BlockStored, KvEventBatch

# A little less than a quarter of the bytes: ids of two bytes and one that says so.
QUARTER = [1000] * (MAX_BUFFERED_BYTES // 12 - 100)


def batch(number: int, token_ids: list[int]) -> KvEventBatch:
    """One block of these tokens."""
    event = BlockStored(
        block_hashes=[bytes(32)],
        parent_block_hash=None,
        token_ids=token_ids,
        block_size=len(token_ids),
    )
    return KvEventBatch(sequence_number=number, timestamp=0.0, events=[event])


async def first_buffered(feed: KvEventFeed) -> int:
    """Where a subscriber who wants everything begins."""
    async with aclosing(feed.subscribe(0)) as batches:
        return (await anext(batches)).sequence_number


async def test_the_oldest_batches_go_when_the_tokens_are_too_many():
    """Four quarters are kept of ten: large steps would fill the memory long before ten thousand."""
    feed = KvEventFeed()
    for number in range(10):
        feed.publish(batch(number, QUARTER))
    assert await first_buffered(feed) == 6


async def test_a_batch_beyond_the_limit_is_buffered_alone():
    """The newest is always there, however large; with the next one it goes."""
    feed = KvEventFeed()
    feed.publish(batch(0, QUARTER))
    feed.publish(batch(1, QUARTER * 5))
    assert await first_buffered(feed) == 1
    feed.publish(batch(2, QUARTER))
    assert await first_buffered(feed) == 2


def test_ten_thousand_small_batches_take_a_few_mebibytes():
    """A server of short prompts keeps them for ever: as objects they were two thirds of its growth."""
    feed = KvEventFeed()
    tracemalloc.start()
    for number in range(2 * MAX_BUFFERED_BATCHES):
        feed.publish(batch(number, [*range(5000 + number, 5048 + number)]))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5 << 20


async def test_who_falls_out_of_the_ring_fails_at_once():
    """Publishing waits for nobody, and nothing is kept for one alone: what the ring dropped, nobody has."""
    feed = KvEventFeed()
    feed.publish(batch(0, [1]))
    async with aclosing(feed.subscribe(0)) as batches:
        assert (await anext(batches)).sequence_number == 0
        for number in range(1, MAX_BUFFERED_BATCHES + 2):
            feed.publish(batch(number, [number]))
        with pytest.raises(Overloaded, match="10001 batches unread"):
            await anext(batches)


async def test_what_is_buffered_comes_before_the_end():
    """A subscriber learns all that happened, and then that nothing more will."""
    feed = KvEventFeed()
    feed.publish(batch(0, [1]))
    feed.close(EngineDead("gone"))
    async with aclosing(feed.subscribe(0)) as batches:
        assert (await anext(batches)).sequence_number == 0
        with pytest.raises(EngineDead, match="gone"):
            await anext(batches)


async def test_subscribers_who_come_and_go_leave_nothing():
    """While nothing happens too; and who stays is woken each time without a trace."""
    feed = KvEventFeed()
    async with aclosing(feed.subscribe(None)) as batches:

        async def turn() -> None:
            leaves = asyncio.ensure_future(anext(feed.subscribe(None)))
            stays = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            leaves.cancel()
            feed.publish(batch(0, []))
            await asyncio.wait({leaves, stays})

        await turn()
        num_tasks, num_futures = len(asyncio.all_tasks()), count_futures()
        for _ in range(50):
            await turn()
        assert len(asyncio.all_tasks()) == num_tasks
        assert count_futures() <= num_futures


def count_futures() -> int:
    """Futures that somebody holds."""
    gc.collect()
    return sum(type(thing) is asyncio.Future for thing in gc.get_objects())
