"""The ring of prefix-cache changes is bounded by what it weighs, not only by how many they are."""

from contextlib import aclosing

from weft.core.types import BlockStored, KvEventBatch
from weft.engine.front.kv_feed import MAX_KEPT_TOKENS, KvEventFeed

QUARTER = list(range(MAX_KEPT_TOKENS // 4))


def batch(number: int, token_ids: list[int]) -> KvEventBatch:
    """One block of these tokens."""
    event = BlockStored(
        block_hashes=[bytes(32)],
        parent_block_hash=None,
        token_ids=token_ids,
        block_size=len(token_ids),
    )
    return KvEventBatch(sequence_number=number, timestamp=0.0, events=[event])


async def first_kept(feed: KvEventFeed) -> int:
    """Where a subscriber who wants everything begins."""
    async with aclosing(feed.subscribe(0)) as batches:
        return (await anext(batches)).sequence_number


async def test_the_oldest_batches_go_when_the_tokens_are_too_many():
    """Four quarters are kept of ten: large steps would fill the memory long before ten thousand."""
    feed = KvEventFeed()
    for number in range(10):
        feed.publish(batch(number, QUARTER))
    assert await first_kept(feed) == 6


async def test_a_batch_beyond_the_limit_is_kept_alone():
    """The newest is always there, however large; with the next one it goes."""
    feed = KvEventFeed()
    feed.publish(batch(0, QUARTER))
    feed.publish(batch(1, QUARTER * 5))
    assert await first_kept(feed) == 1
    feed.publish(batch(2, QUARTER))
    assert await first_kept(feed) == 2
