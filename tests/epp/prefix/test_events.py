import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.doubles.loop_probe import check_pauses, is_bounded, loop_probe
from tests.epp.pools import make_pool, until
from tests.epp.prefix.test_precise import KEYS, make_index
from weft.core.errors import ConfigError
from weft.core.values.prompts import pack_tokens
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, EndpointSpec
from weft.epp.prefix.events import (
    MAX_BATCH_BYTES,
    Cleared,
    Malformed,
    Removed,
    Stored,
    decode_batch,
)
from weft.epp.prefix.feed import EventFeed, Step
from weft.epp.prefix.keys import chain_keys
from weft.epp.prefix.zmq_events import ZmqHub, ZmqSubscriber

TOKENS = [1, 2, 3, 4]


def encode(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


STORED = Stored(hashes=[5, 6], parent=4, tokens=pack_tokens(TOKENS), block_size=2, extras=[])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (["BlockStored", [5, 6], 4, TOKENS, 2, None], STORED),
        (["BlockStored", [5, 6], 4, TOKENS, 2, None, "GPU", None, None, None, "future"], STORED),
        ({"type": "BlockStored", "block_hashes": [5, 6], "parent_block_hash": 4,
          "token_ids": TOKENS, "block_size": 2}, STORED),
        (["BlockStored", [b"\0" * 24 + b"\0\0\0\0\0\0\0\5", 6], b"\4", TOKENS, 2, None], STORED),
        (["BlockStored", [-1], None, [7], 1, 3, "cpu", "ad", [["ad", "salt"]], 2],
         Stored(hashes=[2**64 - 1], parent=None, tokens=pack_tokens([7]), block_size=1, tier="cpu",
                group=2, lora_name="ad", extras=[["salt"]])),
        (["BlockStored", [1], None, [7], 1, None, None, None, [[["img", 3]]]],
         Stored(hashes=[1], parent=None, tokens=pack_tokens([7]), block_size=1, extras=[["img", 3]])),
        (["BlockStored", [1], None, [7], 1, None, None, None, [[["img", 1.5, ["a"], None]]]],
         Stored(hashes=[1], parent=None, tokens=pack_tokens([7]), block_size=1,
                extras=[["img", "1.5", "['a']", None]])),
        (["BlockRemoved", [5]], Removed(hashes=[5])),
        (["BlockRemoved", [5], "CPU", 1], Removed(hashes=[5], tier="cpu", group=1)),
        ({"type": "BlockRemoved", "block_hashes": [5], "medium": "cpu"},
         Removed(hashes=[5], tier="cpu")),
        (["AllBlocksCleared"], Cleared()),
        ({"type": "AllBlocksCleared"}, Cleared()),
    ],
)  # fmt: skip
def test_events_are_read_in_either_shape(event: object, expected: object):
    """Arrays by position, maps by name; hashes as ints or bytes; left out or appended fields."""
    assert list(decode_batch(encode(event))) == [expected]


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", encode([]), encode(5), encode([5]), encode({"type": None}),
        encode(["BlockStored", [1]]), encode(["BlockStored", [1], None, [1, 2], 1, None]),
        encode(["BlockStored", [1], None, [-1], 1, None]),
        encode(["BlockStored", [1], None, [1], 0, None]),
        encode(["BlockRemoved", ["x"]]), encode(["BlockRemoved", [True]]),
        msgspec.msgpack.encode([1.0]), msgspec.msgpack.encode(7),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_malformed(payload: bytes):
    """Never any other exception."""
    with pytest.raises(Malformed):
        list(decode_batch(payload))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=4) | st.binary(max_size=9)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(PLAIN, max_size=3) | PLAIN)
def test_any_message_is_read_or_malformed(batch: object):
    """A publisher cannot end its subscriber."""
    try:
        list(decode_batch(msgspec.msgpack.encode(batch)))
    except Malformed:
        pass


def make_feed(endpoint: Endpoint):
    metrics, index = PickerMetrics(), make_index()
    feed = EventFeed(index, endpoint, metrics)
    feed.name_model("m")
    return feed, index, metrics


def noted(metrics: PickerMetrics, outcome: str) -> float:
    return (
        metrics.registry.get_sample_value("llm_d_epp_kv_cache_events_total", {"outcome": outcome})
        or 0.0
    )


def one_block(number: int) -> bytes:
    """Block `number` of a chain, as a batch."""
    parent = None if number == 0 else number
    return encode(["BlockStored", [number + 1], parent, [number, number], 2, None])


def held(index, endpoint: Endpoint) -> int:
    """Blocks of that chain an endpoint holds from the start."""
    tokens = pack_tokens([token for i in range(20) for token in (i, i)])
    chain = chain_keys(KEYS, tokens, block_size=2, parent=KEYS.root("m"), first_extra=None)
    return sum(n for bits, n, _ in index.match(chain) if bits >> endpoint.slot & 1)


def test_places_in_an_array_mean_what_the_engine_says():
    """Behind the medium one engine names an adapter, and another may come to say anything."""
    event = ["BlockStored", [1], None, [5, 6], 2, None, "GPU", "x"]
    payload = msgspec.msgpack.encode([0.0, [event]])
    names = [next(decode_batch(payload, engine)).lora_name for engine in ("vllm", "sglang")]
    assert names == ["x", None]


async def test_feed_tells_gaps_repeats_and_restarts():
    """By sequence number alone; live repeats after a replay are no restart."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, *_ = make_feed(endpoint)
    assert feed.step(41) is Step.NEXT
    await feed.apply(41, [])
    steps = [feed.step(number) for number in (42, 43, 41, 0)]
    assert steps == [Step.NEXT, Step.GAP, Step.RESTARTED, Step.RESTARTED]
    feed.replayed()
    assert feed.step(40) is Step.REPEATED


async def test_malformed_payload_is_counted_and_dropped():
    """What was known stays, and the next one is applied."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, metrics = make_feed(endpoint)
    await feed.apply_payload(0, one_block(0))
    await feed.apply_payload(1, b"\xc1")
    await feed.apply_payload(2, one_block(1))
    assert (held(index, endpoint), noted(metrics, "malformed")) == (2, 1)


async def test_of_an_endpoint_that_leaves_the_rest_of_a_batch_is_not_applied():
    """Its place in the index may be another's by then."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, _ = make_feed(endpoint)

    def events():
        yield STORED
        feed.close()
        index.clear(endpoint)
        yield STORED

    await feed.apply(0, events())
    assert index.num_blocks(endpoint) == 0


NUM = MAX_BATCH_BYTES - 100


def arrays(num_items: int, item: bytes) -> bytes:
    return b"\xdd" + num_items.to_bytes(4, "big") + item * num_items


LARGEST = {
    "empty events": b"\x92\xc0" + arrays(NUM, b"\x90"),
    "events": encode(*[["AllBlocksCleared"]] * (NUM // 18)),
    "nested": b"\x92\xc0" + b"\x91" * NUM,
    "blocks": encode(["BlockStored", [1] * (NUM // 2), None, [1] * (NUM // 2), 1]),
    "tokens": encode(["BlockStored", [1] * (NUM // 4001), None, [1] * (NUM // 4001 * 4000), 4000]),
    "removed": encode(["BlockRemoved", [1] * NUM]),
    "extras": encode(["BlockStored", [1] * (NUM // 3), None, [1] * (NUM // 3), 1, None, None, None,
                      [[]] * (NUM // 3)]),
    "an extra": b"\x92\xc0\x91\x99\xabBlockStored\x91\x01\xc0\x91\x01\x01\xc0\xc0\xc0\x91"
                + arrays(NUM - 100, b"\x90"),
    "too large": b"\x92\xc0" + arrays(3 * NUM, b"\x90"),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGEST)
async def test_no_message_holds_up_requests(name: str):
    """Whatever an engine sends, on top of a full index: a megabyte took seconds."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, _ = make_feed(endpoint)
    many = 100_000
    tokens = pack_tokens(range(2 * many))
    index.apply(
        endpoint, Stored(hashes=range(many), parent=None, tokens=tokens, block_size=2), model="m"
    )
    await check_pauses(lambda: feed.apply_payload(0, LARGEST[name]))


# -- over ZeroMQ ------------------------------------------------------------------------------


class Publisher:
    """An engine's PUB socket, and its ROUTER for replays; it keeps what it sent."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.pub = context.socket(zmq.PUB)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = context.socket(zmq.ROUTER)
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.kept: list[tuple[int, bytes]] = []
        self.num_replays = 0

    async def send(self, sequence: int, payload: bytes, *, is_lost: bool = False) -> None:
        self.kept.append((sequence, payload))
        if not is_lost:
            await self.pub.send_multipart([b"kv@e@m", sequence.to_bytes(8, "big"), payload])

    def close(self) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)

    async def serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.num_replays += 1
            for sequence, payload in self.kept:
                if sequence >= int.from_bytes(start, "big"):
                    await self.router.send_multipart(
                        [client, b"", sequence.to_bytes(8, "big"), payload]
                    )
            await self.router.send_multipart([client, b"", b"\xff" * 8, b""])


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    """ZeroMQ for one test."""
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize("has_replay", [True, False])
async def test_lost_messages_are_replayed_or_the_endpoint_is_cleared(context, has_replay: bool):
    """With a replay nothing is missing; without one nothing wrong is kept."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, metrics = make_feed(endpoint)
    engine = Publisher(context)
    subscriber = ZmqSubscriber(context, feed, endpoint, "kv@", asyncio.Semaphore(1))
    replay_port = engine.replay_port if has_replay else None
    await engine.send(0, one_block(0), is_lost=True)
    async with asyncio.TaskGroup() as group:
        server = group.create_task(engine.serve())
        client = group.create_task(subscriber.run(engine.port, replay_port))
        await until(lambda: engine.num_replays or not has_replay)
        # Until the subscription is through, messages go nowhere: a PUB socket does not wait.
        sequence = 1
        while feed.last is None or feed.last < 1:
            await engine.send(sequence, one_block(sequence))
            sequence += 1
            await asyncio.sleep(0.02)
        await engine.send(sequence, one_block(sequence), is_lost=True)
        await engine.send(sequence + 1, one_block(sequence + 1))
        await until(lambda: feed.last == sequence + 1)
        client.cancel()
        server.cancel()
    engine.close()

    if has_replay:
        assert held(index, endpoint) == min(sequence + 2, 20)
        assert noted(metrics, "gap") == 0
    else:
        assert held(index, endpoint) == 0
        assert noted(metrics, "gap") == 1
    index.check()


async def test_restarted_engine_starts_with_nothing(context):
    """Its numbers begin anew, and its cache is empty."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, metrics = make_feed(endpoint)
    subscriber = ZmqSubscriber(context, feed, endpoint, "kv@", asyncio.Semaphore(1))
    frames = [(i, one_block(i)) for i in range(3)] + [(0, encode())]
    for sequence, payload in frames:
        await subscriber._take([b"kv@e@m", sequence.to_bytes(8, "big"), payload], None)
    await subscriber._take([b"only one frame"], None)
    assert (held(index, endpoint), noted(metrics, "restart")) == (0, 1)
    assert noted(metrics, "malformed") == 1


async def test_hub_knows_endpoints_by_their_topic(context):
    """Engines connect to the picker; strangers are counted and dropped."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, index, _ = make_feed(endpoint)
    strangers = []
    hub = ZmqHub(context, {"e": feed}.get, lambda: strangers.append(1))
    hub.bind("inproc://hub", "kv@")
    task = asyncio.create_task(hub.run())
    engine = context.socket(zmq.PUB)
    engine.connect("inproc://hub")
    sequence = 0
    async with asyncio.timeout(PATIENCE_S):
        while feed.last is None:
            for name in (b"kv@stranger@m", b"kv@e@m"):
                payload = one_block(sequence)
                await engine.send_multipart([name, sequence.to_bytes(8, "big"), payload])
            sequence += 1
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    engine.close(linger=0)
    assert strangers
    with pytest.raises(ConfigError, match="zmqEndpoint: cannot bind"):
        hub.bind("nonsense", "kv@")
    assert index.num_blocks(endpoint) + index.num_orphans >= 1


async def test_many_small_messages_let_others_have_their_turns(context):
    """Each is there at once while they come faster than they are applied, and none of them takes long itself."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    feed, _, _ = make_feed(endpoint)
    hub = ZmqHub(context, {"e": feed}.get, lambda: None)
    hub.bind("inproc://flood", "kv@")
    engine = context.socket(zmq.PUB)
    engine.sndhwm = 0
    engine.connect("inproc://flood")
    task = asyncio.create_task(hub.run())

    async def send(sequence: int) -> None:
        await engine.send_multipart([b"kv@e@m", sequence.to_bytes(8, "big"), encode()])

    sequence = 0
    while feed.last is None:  # the subscription is not through
        await send(sequence)
        sequence += 1
        await asyncio.sleep(0.02)
    end = sequence + 8000
    for each in range(sequence, end):
        await send(each)
    with loop_probe() as probe:
        await until(lambda: feed.last == end - 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    engine.close(linger=0)
    assert is_bounded(probe.longest_s), probe.longest
