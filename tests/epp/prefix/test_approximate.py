import asyncio
from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import around, cycle, parameters, pool_of, request, with_loads
from weft.core.values.prompts import pack_tokens
from weft.epp.decision.cycle import Schedule
from weft.epp.plugins.producers.approximate_prefix import (
    ApproximateParameters,
    ApproximatePrefixProducer,
)
from weft.epp.plugins.producers.tokens import TokenParameters, TokenProducer
from weft.epp.pool.endpoint import Load
from weft.epp.prefix.approximate import ApproximateIndex
from weft.epp.prefix.holders import by_endpoint

ENDPOINTS = list(pool_of(3))
BLOCKS = st.lists(st.integers(0, 12), max_size=8)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), BLOCKS, st.integers(1, 6)),
        st.tuples(st.just("remove"), st.integers(0, 2), st.just([]), st.just(0)),
    ),
    max_size=30,
)


@given(ACTIONS, BLOCKS)
def test_index_is_what_a_plain_model_of_it_is(actions, wanted: list[int]):
    """Sets of endpoints and one LRU each; a match walks until nobody holds a block."""
    index, model = ApproximateIndex(), {endpoint: OrderedDict() for endpoint in ENDPOINTS}
    for action, number, blocks, capacity in actions:
        endpoint = ENDPOINTS[number]
        if action == "remove":
            index.remove(endpoint)
            model[endpoint].clear()
            continue
        index.add(endpoint, blocks, capacity=capacity)
        for block in blocks:
            model[endpoint].pop(block, None)
            model[endpoint][block] = None
        while len(model[endpoint]) > capacity:
            model[endpoint].popitem(last=False)
        index.check()

    expected: Counter = Counter()
    for block in wanted:
        holders = [endpoint for endpoint in ENDPOINTS if block in model[endpoint]]
        if not holders:
            break
        expected.update(holders)
    assert by_endpoint(index.match(wanted), ENDPOINTS) == expected
    assert [index.num_blocks(each) for each in ENDPOINTS] == [len(model[e]) for e in ENDPOINTS]


def run(producer: ApproximatePrefixProducer, candidates, *token_ids: int, pick=None, salt=""):
    """One request through the producer, and to `pick`."""
    made = cycle(candidates)
    made.request = request(*token_ids, cache_salt=salt)
    asyncio.run(TokenProducer(TokenParameters(), around()).prepare(made))
    producer.produce(made)
    if pick is not None:
        producer.picked(made, Schedule("p", pick if isinstance(pick, dict) else {"p": [pick]}))
    return made.prefixes["it"]


def test_what_was_sent_somewhere_is_held_there():
    """The next prompt with the same start matches; blocks are never smaller than 64 tokens."""
    pool = pool_of(2)
    one, two = candidates = list(pool)
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    run(producer, candidates, *range(200), pick=one)

    found = run(producer, candidates, *range(128), 9, 9)

    assert (found.num_blocks, found.block_size) == (3, 64)
    assert (found.held.get(one), found.held.get(two)) == (2, None)


def test_another_salt_or_model_shares_nothing():
    """Their caches do not either."""
    pool = pool_of(1)
    (one,) = candidates = list(pool)
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    run(producer, candidates, *range(64), pick=one)
    assert run(producer, candidates, *range(64)).held
    assert not run(producer, candidates, *range(64), salt="s").held


def test_prefill_endpoint_holds_the_prompt_too():
    """Disaggregated, the prompt is computed there."""
    pool = pool_of(3)
    one, two, _ = candidates = list(pool)
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    run(producer, candidates, *range(64), pick={"p": [one], "prefill": [two]})
    assert set(run(producer, candidates, *range(64)).held) == {one, two}


@pytest.mark.parametrize(
    ("settings", "told", "expected"),
    [({}, 0, 64), ({}, 128, 128), ({}, 16, 64), ({"autoTune": False}, 128, 64),
     ({"autoTune": False, "blockSizeTokens": 100}, 128, 100)],
)  # fmt: skip
def test_block_size_is_the_servers_or_the_configured(settings, told: int, expected: int):
    """The first candidate's, when tuning itself; never less than 64."""
    pool = pool_of(1)
    candidates = with_loads(pool, Load(block_size=told))
    values = parameters(ApproximateParameters, **settings)
    producer = ApproximatePrefixProducer(values, around(pool))
    assert run(producer, candidates, *range(300)).block_size == expected


def test_server_with_few_blocks_holds_few():
    """The oldest are forgotten beyond its own number of blocks."""
    pool = pool_of(1)
    (one,) = candidates = with_loads(pool, Load(num_blocks=2))
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    run(producer, candidates, *range(64), pick=one)
    run(producer, candidates, *range(1000, 1128), pick=one)
    assert not run(producer, candidates, *range(64)).held


def test_endpoint_that_leaves_is_forgotten_at_once():
    """A new one in its slot starts with nothing."""
    pool = pool_of(1)
    (one,) = candidates = list(pool)
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    run(producer, candidates, *range(64), pick=one)
    spec = one.spec
    pool.replace("test", [])
    pool.replace("test", [(spec, "10.9.9.9")])
    assert not run(producer, list(pool), *range(64)).held


async def test_a_thousand_prompts_are_matched_at_once_however_many_endpoints_hold_them():
    """One request brings them; each with each endpoint would be a product."""
    pool = pool_of(400)
    producer = ApproximatePrefixProducer(ApproximateParameters(), around(pool))
    made = cycle(list(pool))
    made.prompts = [pack_tokens([number]) for number in range(1024)]
    producer.produce(made)
    hashes = [block for chain in made.chains["it"] for block in chain]
    for endpoint in pool:
        producer._index.add(endpoint, hashes, capacity=1024)

    async def produce() -> None:
        producer.produce(made)

    await check_pauses(produce)
    assert made.prefixes["it"].held == dict.fromkeys(pool, 1024)
