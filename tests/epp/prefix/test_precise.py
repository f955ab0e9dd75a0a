import asyncio
from collections.abc import Sequence
from itertools import count, islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import around, cycle, parameters, pool_of, request
from weft.core.values.prompts import pack_tokens
from weft.epp.decision.cycle import Cycle, PrefixMatch, Schedule
from weft.epp.plugins.producers.precise_prefix import PreciseParameters, PrecisePrefixProducer
from weft.epp.plugins.producers.tokens import TokenParameters, TokenProducer
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.events import Cleared, Removed, Stored
from weft.epp.prefix.keys import XxhKeys, chain_keys
from weft.epp.prefix.precise import PreciseIndex

KEYS = XxhKeys("")
ONE, TWO = POOL = list(pool_of(2))


def make_index(block_size: int = 2, **changes) -> PreciseIndex:
    settings = {"weights": {"gpu": 1.0, "cpu": 0.8}, "max_keys": 1000} | changes
    return PreciseIndex(KEYS, block_size=block_size, **settings)


def stored(*hashes: int, tokens: Sequence[int], parent: int | None = None, **fields) -> Stored:
    size = len(tokens) // len(hashes)
    return Stored(
        hashes=hashes, parent=parent, tokens=pack_tokens(tokens), block_size=size, **fields
    )


def weights(index: PreciseIndex, *tokens: int, model: str = "m") -> dict[Endpoint, float]:
    """Weight of each endpoint's match."""
    chain = chain_keys(
        KEYS, pack_tokens(tokens), block_size=index.block_size, parent=KEYS.root(model),
        first_extra=None,
    )  # fmt: skip
    found = index.match(chain)
    sums = {each: sum(w for bits, _, w in found if bits >> each.slot & 1) for each in POOL}
    return {each: total for each, total in sums.items() if total}


def test_match_is_the_unbroken_run_by_tier():
    """A block in memory of the host is worth less; the best tier counts; a gap ends the run."""
    index = make_index()
    index.apply(ONE, stored(1, 2, 3, tokens=[1, 2, 3, 4, 5, 6]), model="m")
    index.apply(TWO, stored(1, tokens=[1, 2]), model="m")
    index.apply(TWO, stored(2, tokens=[3, 4], parent=1, tier="cpu"), model="m")

    assert weights(index, 1, 2, 3, 4, 5, 6, 7) == {ONE: 3.0, TWO: 1.8}
    index.apply(TWO, Removed(hashes=[1]), model="m")
    assert weights(index, 1, 2, 3, 4) == {ONE: 2.0}
    index.check()


def test_chains_of_another_model_or_adapter_do_not_match():
    """The root is the model's, or the adapter's."""
    index = make_index()
    index.apply(ONE, stored(1, tokens=[1, 2]), model="m")
    index.apply(TWO, stored(1, tokens=[1, 2], lora_name="a"), model="m")
    assert weights(index, 1, 2) == {ONE: 1.0}
    assert weights(index, 1, 2, model="a") == {TWO: 1.0}


def test_removals_are_counted():
    """Two cache groups store one block; it is gone when both dropped it."""
    index = make_index()
    index.apply(ONE, stored(1, tokens=[1, 2], group=0), model="m")
    index.apply(ONE, stored(1, tokens=[1, 2], group=1), model="m")
    index.apply(ONE, Removed(hashes=[1], group=0), model="m")
    assert weights(index, 1, 2) == {ONE: 1.0}
    index.apply(ONE, Removed(hashes=[1], group=1), model="m")
    assert weights(index, 1, 2) == {}
    assert index.num_blocks(ONE) == 0


def test_storing_twice_is_storing_once():
    """A replay may repeat what is known."""
    index = make_index()
    for _ in range(2):
        index.apply(ONE, stored(1, tokens=[1, 2]), model="m")
    index.apply(ONE, Removed(hashes=[1]), model="m")
    assert weights(index, 1, 2) == {}


def test_blocks_without_a_known_parent_are_left_out():
    """Their tokens alone do not say what they continue."""
    index = make_index()
    index.apply(ONE, stored(5, tokens=[1, 2], parent=4), model="m")
    assert (weights(index, 1, 2), index.num_orphans) == ({}, 1)


def test_engine_and_index_may_cut_blocks_differently():
    """Larger blocks of ours appear when the last of theirs does; smaller ones at once."""
    coarse, fine = make_index(4), make_index(1)
    coarse.apply(ONE, stored(1, tokens=[1, 2]), model="m")
    assert weights(coarse, 1, 2, 3, 4) == {}
    coarse.apply(ONE, stored(2, tokens=[3, 4], parent=1), model="m")
    assert weights(coarse, 1, 2, 3, 4) == {ONE: 1.0}
    fine.apply(ONE, stored(1, tokens=[1, 2, 3]), model="m")
    assert weights(fine, 1, 2, 3, 4) == {ONE: 3.0}


def test_index_never_grows_past_its_limit():
    """The key first stored longest ago goes."""
    index = make_index(max_keys=2)
    index.apply(ONE, stored(1, 2, 3, tokens=[1, 2, 3, 4, 5, 6]), model="m")
    assert (len(index), index.num_evictions, weights(index, 1, 2)) == (2, 1, {})
    index.check()


def test_an_engine_that_drops_nothing_has_its_oldest_blocks_forgotten():
    """Blocks too small to complete a key count as well: as many tokens are held as there may be keys for."""
    index = make_index(4, max_keys=2)
    for number in range(100):
        parent = number - 1 if number else None
        index.apply(ONE, stored(number, tokens=[number], parent=parent), model="m")
    assert len(index._holdings[ONE].blocks) == 8
    assert index.num_orphans == 0
    index.apply(ONE, Removed(hashes=list(range(100))), model="m")
    assert index.num_blocks(ONE) == 0
    index.check()


async def test_a_full_index_takes_blocks_in_no_longer_where_endpoints_are_many():
    """Who held a key that goes is known: nobody else is looked at."""
    crowd = list(pool_of(4000))
    index = make_index(1, max_keys=4000)
    for number, endpoint in enumerate(crowd):
        index.apply(endpoint, stored(1, tokens=[number]), model="m")
    numbers = count(10_000)

    async def store() -> None:
        hashes = list(islice(numbers, 512))
        index.apply(crowd[0], stored(*hashes, tokens=hashes), model="m")

    await check_pauses(store)
    assert len(index) <= 4000
    index.check()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(POOL),
        st.one_of(
            st.builds(
                lambda n, length, tier: ("store", n, length, tier),
                st.integers(0, 3), st.integers(1, 4), st.sampled_from(["gpu", "cpu"]),
            ),
            st.builds(
                lambda n, i, tier: ("remove", n, i, tier),
                st.integers(0, 3), st.integers(0, 3), st.sampled_from(["gpu", "cpu"]),
            ),
            st.just(("clear", 0, 0, "")),
        ),
    ),
    max_size=25,
)  # fmt: skip


@given(EVENTS)
def test_index_agrees_with_a_plain_model_after_any_events(events):
    """Four chains of four blocks, stored, dropped and cleared in any order."""
    index, model = make_index(1), {each: set() for each in POOL}
    for endpoint, (kind, chain, number, tier) in events:
        if kind == "clear":
            index.apply(endpoint, Cleared(), model="m")
            model[endpoint].clear()
        elif kind == "remove":
            index.apply(endpoint, Removed(hashes=[10 * chain + number], tier=tier), model="m")
            model[endpoint].discard((chain, number, tier))
        else:
            hashes = [10 * chain + i for i in range(number)]
            tokens = [100 * chain + i for i in range(number)]
            index.apply(endpoint, stored(*hashes, tokens=tokens, tier=tier), model="m")
            model[endpoint] |= {(chain, i, tier) for i in range(number)}
        index.check()

    for chain in range(4):
        expected = {endpoint: run_weight(model[endpoint], chain) for endpoint in POOL}
        found = weights(index, *(100 * chain + i for i in range(4)))
        assert {each: round(found.get(each, 0.0), 6) for each in POOL} == expected


def run_weight(held: set, chain: int) -> float:
    """What the unbroken run of a chain is worth."""
    total = 0.0
    for i in range(4):
        if (chain, i, "gpu") in held:
            total += 1.0
        elif (chain, i, "cpu") in held:
            total += 0.8
        else:
            break
    return round(total, 6)


# -- the producer -----------------------------------------------------------------------------


def produce(
    producer: PrecisePrefixProducer, pool, now: float = 0.0, **fields
) -> tuple[Cycle, PrefixMatch | None]:
    made = cycle(list(pool))
    made.request, made.model, made.now = request(*fields.pop("tokens", ()), **fields), "m", now
    asyncio.run(TokenProducer(TokenParameters(), around()).prepare(made))
    asyncio.run(producer.prepare(made))
    producer.produce(made)
    return made, made.prefixes.get("it")


def make_producer(pool, **settings) -> PrecisePrefixProducer:
    values = {"tokenProcessorConfig": {"blockSizeTokens": 2}} | settings
    return PrecisePrefixProducer(parameters(PreciseParameters, **values), around(pool))


def test_producer_finds_what_events_told():
    """By real tokens only: text stands for no block."""
    pool = pool_of(2)
    one, _ = pool
    producer = make_producer(pool)
    producer.index.apply(one, stored(1, tokens=[7, 8]), model="m")
    _, found = produce(producer, pool, tokens=(7, 8, 9))
    assert (found.held, found.num_blocks) == ({one: 1}, 1)
    assert produce(producer, pool, text="text")[1] is None


@pytest.mark.parametrize(
    ("model", "bases", "finds"),
    [("", ["base"], True), ("alias", ["base"], True), ("base", ["base", "b"], True),
     ("alias", ["base", "b"], False), ("adapter", ["base"], False)],
)  # fmt: skip
def test_unknown_model_means_the_only_base_model(model: str, bases: list[str], finds: bool):
    """gRPC names none, and clients may use an alias; an adapter that events know is itself."""
    pool = pool_of(2)
    one, two = pool
    producer = make_producer(pool)
    producer.index.apply(one, stored(1, tokens=[7, 8]), model="base")
    producer.index.apply(one, stored(2, tokens=[5, 6], lora_name="adapter"), model="base")
    producer.index.base_models.update(zip((one, two), bases, strict=False))
    made = cycle(list(pool), model=model)
    made.request = request(7, 8)
    asyncio.run(TokenProducer(TokenParameters(), around()).prepare(made))
    asyncio.run(producer.prepare(made))
    producer.produce(made)
    assert made.prefixes["it"].held == ({one: 1} if finds else {})


def test_an_adapter_that_no_event_named_yet_is_not_the_base_model():
    """Its blocks hold other values, so a match would be a lie."""
    pool = pool_of(1)
    (one,) = pool
    producer = make_producer(pool)
    producer.index.apply(one, stored(1, tokens=[7, 8]), model="base")
    producer.index.base_models[one] = "base"
    made = cycle([one], model="a")
    made.request = request(7, 8, model="a", has_adapter=True)
    asyncio.run(TokenProducer(TokenParameters(), around()).prepare(made))
    asyncio.run(producer.prepare(made))
    producer.produce(made)
    assert made.prefixes["it"].held == {}


def test_salted_requests_match_salted_blocks_only():
    """The salt is the first block's extra."""
    pool = pool_of(1)
    (one,) = pool
    producer = make_producer(pool)
    event = stored(1, 2, tokens=[7, 8, 9, 9], extras=[("s",)])
    producer.index.apply(one, event, model="m")
    assert produce(producer, pool, tokens=(7, 8, 9, 9), cache_salt="s")[1].held == {one: 2}
    assert produce(producer, pool, tokens=(7, 8, 9, 9))[1].held == {}


def test_a_measured_index_counts_what_comes_and_goes():
    """Blocks stored, removed, and removed while others stand for the same tokens."""
    pool = pool_of(1)
    (endpoint,) = pool
    around_ = around(pool)
    settings = {"indexerConfig": {"kvBlockIndexConfig": {"enableMetrics": True}}}
    producer = PrecisePrefixProducer(parameters(PreciseParameters, **settings), around_)
    tokens = pack_tokens(range(32))
    first = Stored(hashes=[1, 2], parent=None, tokens=tokens, block_size=16)
    twin = Stored(hashes=[3], parent=None, tokens=tokens[:64], block_size=16)
    for event in (first, twin, Removed(hashes=[3]), Removed(hashes=[2])):
        producer.index.apply(endpoint, event, model="")
    wanted = cycle([endpoint])
    wanted.prompts, wanted.has_real_tokens = [tokens], True
    asyncio.run(producer.prepare(wanted))
    producer.produce(wanted)
    around_.metrics.text()
    prefix = "llm_d_epp_kv_cache_"
    told = {
        name: around_.metrics.registry.get_sample_value(prefix + name)
        for name in (
            "index_admissions_total", "index_evictions_total", "index_lookup_requests_total",
            "index_lookup_hits_total", "index_max_pod_hit_count_total",
            "index_lookup_latency_seconds_count",
            "events_dedup_removed_hashes_suppressed_total",
            "events_dedup_removed_hashes_forwarded_total",
        )
    }  # fmt: skip
    assert list(told.values()) == [2, 1, 1, 1, 1, 1, 1, 1]


def test_guesses_bridge_the_time_until_events_come():
    """They expire, and events outlive them."""
    pool = pool_of(1)
    (one,) = pool
    producer = make_producer(pool, speculativeIndexing=True)
    made, _ = produce(producer, pool, tokens=(7, 8))
    producer.picked(made, Schedule("p", {"p": [one]}))
    assert produce(producer, pool, 1.0, tokens=(7, 8))[1].held == {one: 1}
    assert produce(producer, pool, 2.5, tokens=(7, 8))[1].held == {}
    assert len(producer.index) == 0


def test_only_so_many_adapters_are_remembered():
    """Engines choose their names; those that were named last stay."""
    (endpoint,) = pool_of(1)
    made = make_index()
    for i in range(5000):
        event = Stored(
            hashes=[i], parent=None, tokens=pack_tokens(range(4)), block_size=4, lora_name=f"a{i}"
        )
        made.apply(endpoint, event, model="m")
    assert len(made.adapters) == 4096
    assert "a4999" in made.adapters
    assert "a0" not in made.adapters


@given(st.data())
def test_masks_of_a_match_are_what_each_endpoint_has(data: st.DataObject):
    """Whatever tiers hold, each endpoint stands in one mask at most, with the run that it has alone."""
    index = make_index()
    places = st.sampled_from(["gpu", "cpu", None])
    held = {each: [data.draw(places) for _ in range(5)] for each in POOL}
    tokens = list(range(10))
    for endpoint, tiers in held.items():
        for at, tier in enumerate(tiers):
            if tier:
                block = stored(
                    at + 1, tokens=tokens[2 * at : 2 * at + 2], parent=at or None, tier=tier
                )
                index.apply(endpoint, block, model="m")

    chain = chain_keys(
        KEYS, pack_tokens(tokens), block_size=2, parent=KEYS.root("m"), first_extra=None
    )
    found = index.match(chain)

    for endpoint, tiers in held.items():
        run = list(takewhile(bool, tiers))
        mine = [each[1:] for each in found if each[0] >> endpoint.slot & 1]
        weight = sum(1.0 if tier == "gpu" else 0.8 for tier in run)
        assert mine == ([(len(run), pytest.approx(weight))] if run else [])


async def test_a_thousand_prompts_are_matched_at_once_however_many_endpoints_hold_them():
    """As with the approximate index."""
    pool = pool_of(400)
    producer = make_producer(pool)
    made = cycle(list(pool))
    made.chains["it"] = [[number] for number in range(1024)]
    for endpoint in pool:
        producer.index.add_speculative(endpoint, range(1024))

    async def match() -> None:
        producer.produce(made)

    await check_pauses(match)
    assert made.prefixes["it"].held == dict.fromkeys(pool, 1024)
