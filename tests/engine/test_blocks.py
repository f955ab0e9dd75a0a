"""Which block is given out next, and what a router is told of those that were stored."""

from tests.doubles.stepping import make_engine
from weft.core.values.kv_cache import BlockStored
from weft.engine.scheduling.blocks.block_pool import BlockPool
from weft.engine.scheduling.drafts import DraftCounts

PROMPT = list(range(10, 21))  # two full blocks of 4 and a part


def test_a_block_that_nobody_can_find_is_given_out_before_one_that_is_cached():
    """Though it was freed later: what is cached may still spare somebody a prompt."""
    pool = BlockPool(2, on_evict=lambda _: None)
    cached, plain = pool.allocate(2)
    pool.label(cached)
    pool.release([cached])
    pool.release([plain])
    assert pool.allocate(2) == [plain, cached]


def test_a_stored_block_names_the_one_before_it():
    """The chain is what a router follows; only the first of a sequence has none before it."""
    engine = make_engine(max_num_batched_tokens=4)
    engine.finish("a", PROMPT, max_tokens=1)
    stored = [e for e in engine.scheduler.cache.take_events() if isinstance(e, BlockStored)]
    hashes = [digest for event in stored for digest in event.block_hashes]
    assert len(stored) == 2
    assert [event.parent_block_hash for event in stored] == [None, hashes[0]]


def test_nothing_was_drafted_at_first():
    """The counters of the metrics begin at zero."""
    counts = DraftCounts()
    counts.propose(3)
    counts.accept(0)
    assert (counts.num_drafts, counts.num_tokens, counts.num_accepted) == (1, 3, 1)
    assert counts.num_accepted_at == [1, 0, 0]
