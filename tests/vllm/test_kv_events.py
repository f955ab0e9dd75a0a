"""`KvEventReader`: batches as vLLM's publishers number them, from each rank."""

import msgspec
import pytest

from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved
from weft.vllm.kv_events import KvEventReader


@pytest.fixture
async def reader():
    made = KvEventReader(num_ranks=2)
    yield made
    made.close()


def message(sequence, block=None, rank=0):
    """One batch in which a block was removed; without one it cannot be read."""
    removed = {"type": "BlockRemoved", "block_hashes": [block]}
    payload = b"\xc1" if block is None else msgspec.msgpack.encode([0.5, [removed], rank])
    return [b"kv@", sequence.to_bytes(8, "big"), payload]


def published(reader):
    """By batch: its number and rank, whether all was cleared first, and which block was removed."""
    found = []
    for batch in reader.feed.buffered(0, 100):
        *before, removed = batch.events
        assert isinstance(removed, BlockRemoved)
        has_cleared = [isinstance(event, AllBlocksCleared) for event in before] == [True]
        block = int.from_bytes(removed.block_hashes[0], "big")
        found.append((batch.sequence_number, batch.data_parallel_rank, has_cleared, block))
    return found


async def test_batches_of_ranks_are_one_sequence(reader):
    """Each rank's own numbers say nothing of the other's."""
    for given in (message(0, 10), message(0, 20, rank=1), message(1, 11), message(1, 21, rank=1)):
        reader._take(given)
    expected = [(0, 0, False, 10), (1, 1, False, 20), (2, 0, False, 11), (3, 1, False, 21)]
    assert published(reader) == expected


@pytest.mark.parametrize(
    "missing", [[], [message(1)], [[b"kv@"]]], ids=["dropped", "unreadable", "cut"]
)
async def test_a_rank_of_which_a_batch_is_missing_begins_anew(reader, missing):
    """What was dropped meanwhile would be looked for there; the other rank's blocks stay."""
    for given in (message(0, 10), message(0, 20, rank=1), *missing, message(2, 12), message(3, 13)):
        reader._take(given)
    reader._take(message(1, 21, rank=1))
    expected = [(0, False), (1, False), (0, True), (0, False), (1, False)]
    assert [(rank, cleared) for _, rank, cleared, _ in published(reader)] == expected


async def test_a_publisher_that_starts_anew_has_an_empty_cache(reader):
    """Its numbers begin again."""
    for given in (message(0, 10), message(1, 11), message(0, 12)):
        reader._take(given)
    assert [cleared for _, _, cleared, _ in published(reader)] == [False, False, True]
