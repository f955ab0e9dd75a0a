"""Cache events over ZeroMQ: vLLM's messages, and a subscriber that loses some and holds the pool's set all the same."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.busy import PATIENCE_S, until
from tests.contract.engines import MODEL, process
from tests.doubles.stepping import SteppingEngine, make_engine
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.observe.kv_feed import KvEventFeed
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    at_rank,
)
from weft.core.values.types import SamplingParams
from weft.engine.front.kv_publisher import MAX_REPLAYS, KvPublisher
from weft.engine.settings.kv_events import read_kv_events
from weft.engine.start.configure import resolve
from weft.model.open import open_model

TOPIC = "kv-events"
END = (1 << 64) - 1
LOOPBACK = dict(socket.if_nameindex())[1]


class Source:
    """What an engine's front has: a feed and a publisher of it."""

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, rank: int = 0, **fields: Any
    ):
        self.live, self.replay = f"ipc://{folder}/live", f"ipc://{folder}/replay"
        given = {
            "enable_kv_cache_events": True,
            "endpoint": self.live,
            "replay_endpoint": self.replay,
        }
        config = read_kv_events(given | {"topic": TOPIC} | fields, environment or {})
        assert config is not None
        self.feed = KvEventFeed()
        self.publisher = KvPublisher(config, self.feed, rank)
        self.num = 0

    def say(self, *events: KvEvent) -> None:
        batch = KvEventBatch(sequence_number=self.num, timestamp=1.5, events=list(events))
        self.num += 1
        self.feed.publish(batch)
        self.publisher.publish(batch)


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Source]:
    made = Source(tmp_path)
    yield made
    made.publisher.close()


def stored(*hashes: bytes, parent: bytes | None = None, **fields: Any) -> BlockStored:
    tokens = list(range(2 * len(hashes)))
    return BlockStored(
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=2,
        **fields,
    )


def digest(number: int) -> bytes:
    return bytes(24) + (2**64 - 1 - number).to_bytes(8, "big")


class Subscriber:
    """Follows as vLLM documents it, in our words. `is_lossy` drops live messages at random.

    A REQ socket takes one message in answer to a request; a DEALER takes all.
    """

    def __init__(
        self, source: Source, kind: int, is_lossy: Callable[[], bool] = lambda: False
    ) -> None:
        self.context = zmq.asyncio.Context()
        self.sub, self.requester = self.context.socket(zmq.SUB), self.context.socket(kind)
        self.sub.connect(source.live)
        self.sub.subscribe(TOPIC)
        self.requester.connect(source.replay)
        self.head = [b""] if kind == zmq.DEALER else []
        self.is_lossy = is_lossy
        self.held: set[int | bytes] = set()
        self.last = -1

    async def take(self) -> None:
        """The next live message, and before it what is missing."""
        topic, number, payload = await asyncio.wait_for(self.sub.recv_multipart(), PATIENCE_S)
        assert topic.decode() == TOPIC
        if self.is_lossy():
            return
        sequence = int.from_bytes(number, "big")
        if sequence > self.last + 1:
            await self.catch_up(sequence)
        if sequence > self.last:
            self.apply(sequence, payload)

    async def catch_up(self, until: int) -> None:
        await self.requester.send_multipart([*self.head, (self.last + 1).to_bytes(8, "big")])
        while True:
            reply = await asyncio.wait_for(self.requester.recv_multipart(), PATIENCE_S)
            number, payload = reply[-2:]
            sequence = int.from_bytes(number, "big")
            if not payload:
                assert sequence == END
                return
            if sequence > self.last:
                self.apply(sequence, payload)
            if not self.head:
                assert self.last >= until - 1
                return

    def apply(self, sequence: int, payload: bytes) -> None:
        _, events, _ = msgspec.msgpack.decode(payload)
        for name, *fields in events:
            match name:
                case "BlockStored":
                    self.held.update(fields[0])
                case "BlockRemoved":
                    self.held.difference_update(fields[0])
                case "AllBlocksCleared":
                    self.held.clear()
        self.last = sequence

    def close(self) -> None:
        self.context.destroy(linger=0)


def live_hashes(engine: SteppingEngine) -> set[int]:
    """What the pool really has, as it is published."""
    return {int.from_bytes(each[-8:], "big") for each in engine.scheduler.cache._blocks_by_hash}


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
@pytest.mark.parametrize("seed", range(3))
async def test_whoever_joins_late_and_loses_messages_holds_what_the_pool_has(
    source: Source, kind: int, seed: int
):
    """Requests that share prefixes come and go in a pool too small for all; then the sets are compared."""
    # How many messages come is not the dice's.
    dice, losses = random.Random(seed), random.Random(seed)
    engine = make_engine(num_blocks=24, block_size=4, max_model_len=64)
    subscriber = None
    for number in range(60):
        if number == 20:
            subscriber = Subscriber(source, kind, lambda: losses.random() < 0.4)
        if dice.random() < 0.05:
            engine.scheduler.cache.clear()
        prompt = [dice.randrange(3) + 2 for _ in range(dice.randrange(1, 30))]
        engine.submit(str(number), prompt, max_tokens=dice.randrange(1, 8))
        engine.run()
        if events := engine.scheduler.cache.take_events():
            source.say(*events)
        while subscriber is not None and await subscriber.sub.poll(2):
            await subscriber.take()
    assert subscriber is not None
    subscriber.is_lossy = lambda: False
    source.say()
    while subscriber.last < source.num - 1:
        if await subscriber.sub.poll(200):
            await subscriber.take()
        else:  # it was not there yet
            source.say()
    subscriber.close()
    assert subscriber.held == live_hashes(engine)
    assert len(subscriber.held) > 5


class Blocks(msgspec.Struct, array_like=True, tag="BlockStored"):
    """What the documented subscriber reads of an event; what follows it passes over."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class Dropped(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    """The same."""

    block_hashes: list[int | bytes]
    medium: str | None


class Emptied(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    """The same."""


class Batch(msgspec.Struct, array_like=True):
    """The same."""

    ts: float
    events: list[Blocks | Dropped | Emptied]


@contextmanager
def requester(source: Source, kind: int = zmq.DEALER) -> Iterator[zmq.asyncio.Socket]:
    """A socket for replays."""
    context = zmq.asyncio.Context()
    socket = context.socket(kind)
    socket.connect(source.replay)
    try:
        yield socket
    finally:
        context.destroy(linger=0)


async def replayed(socket: zmq.asyncio.Socket, start: int) -> list[tuple[int, bytes]]:
    """All that comes to a DEALER, with the end."""
    await socket.send_multipart([b"", start.to_bytes(8, "big")])
    got: list[tuple[int, bytes]] = []
    while not got or got[-1][1]:
        empty, number, payload = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S)
        assert empty == b""
        got.append((int.from_bytes(number, "big"), payload))
    return got


async def test_messages_are_those_that_are_documented(source: Source):
    """Tagged arrays in vLLM's order, the low 64 bits of hashes without a sign, a salt with a chain's first block."""
    source.say(stored(digest(0), digest(1), cache_salt="salt", lora_name="lora"))
    source.say(
        stored(digest(2), parent=digest(1), cache_salt="salt"),
        BlockRemoved(block_hashes=[digest(0)]),
    )
    source.say(AllBlocksCleared())
    with requester(source) as socket:
        *messages, end = await replayed(socket, 0)
    assert end == (END, b"")
    assert [number for number, _ in messages] == [0, 1, 2]
    first, second, third = (msgspec.msgpack.decode(payload) for _, payload in messages)
    hashes = [2**64 - 1, 2**64 - 2]
    keys = [["salt"], None]
    assert first == [
        1.5,
        [["BlockStored", hashes, None, [0, 1, 2, 3], 2, None, "GPU", "lora", keys]],
        0,
    ]
    continued = ["BlockStored", [2**64 - 3], 2**64 - 2, [0, 1], 2, None, "GPU", None, None]
    assert second == [1.5, [continued, ["BlockRemoved", [2**64 - 1], "GPU"]], 0]
    assert third == [1.5, [["AllBlocksCleared"]], 0]
    for _, payload in messages:
        assert msgspec.msgpack.decode(payload, type=Batch).ts == 1.5


async def test_hashes_are_whole_where_the_environment_says_so(tmp_path: Path):
    """As it does to vLLM; and the rank is the publisher's."""
    environment = {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}
    source = Source(tmp_path, environment, rank=3)
    source.say(BlockRemoved(block_hashes=[digest(0)]))
    with requester(source) as socket:
        (_, payload), _ = await replayed(socket, 0)
    source.publisher.close()
    assert msgspec.msgpack.decode(payload) == [1.5, [["BlockRemoved", [digest(0)], "GPU"]], 3]


async def test_a_replay_begins_where_it_is_wanted_and_goes_as_far_back_as_is_said(tmp_path: Path):
    """Nothing is sent twice; what was dropped is missing, which the numbers show."""
    source = Source(tmp_path, buffer_steps=4)
    for number in range(10):
        source.say(BlockRemoved(block_hashes=[digest(number)]))
    with requester(source) as socket:
        numbers = {
            start: [n for n, _ in await replayed(socket, start)] for start in (0, 8, 10, 2**63)
        }
    source.publisher.close()
    assert numbers == {0: [6, 7, 8, 9, END], 8: [8, 9, END], 10: [END], 2**63: [END]}


async def test_other_topics_get_nothing(source: Source):
    """Beginnings of the topic do, the empty one too."""
    context = zmq.asyncio.Context()
    sockets = {}
    for topic in ("", "kv", TOPIC, "kv-events-", "other"):
        sockets[topic] = context.socket(zmq.SUB)
        sockets[topic].connect(source.live)
        sockets[topic].subscribe(topic)
    for wanted in ("", "kv", TOPIC):
        while not await sockets[wanted].poll(20):
            source.say()
    got = {topic for topic, socket in sockets.items() if await socket.poll(100)}
    context.destroy(linger=0)
    assert got == {"", "kv", TOPIC}


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", b"short"],
        [bytes(8)],
        [b"", bytes(8), b""],
        [b"x", bytes(8)],
        [b"", bytes(100_000)],
    ],
)
async def test_what_is_no_request_changes_nothing(source: Source, frames: list[bytes]):
    """It gets no answer, and the next one does."""
    source.say(AllBlocksCleared())
    with requester(source) as bad, requester(source) as good:
        await bad.send_multipart(frames)
        assert len(await replayed(good, 0)) == 2
        assert not await bad.poll(50)


async def test_a_flood_of_requests_is_taken_a_few_at_a_time(source: Source):
    """Between them others have their turns."""
    source.say(AllBlocksCleared())
    router = source.publisher._router
    assert router is not None
    num_left = 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as flooding:
        flooding.connect(source.replay)
        for _ in range(500):
            flooding.send_multipart([b"", b"none"])
        assert router.poll(PATIENCE_S * 1000)
        source.publisher._take_requests()
        while num_left < 400 and router.poll(PATIENCE_S * 1000):
            router.recv_multipart()
            num_left += 1
    assert num_left == 400
    with requester(source) as socket:
        assert len(await replayed(socket, 0)) == 2


async def test_readers_that_read_nothing_hold_nobody_up(
    source: Source, monkeypatch: pytest.MonkeyPatch
):
    """As many as are served at once request all there is, and leave it; others get theirs, and then so do those."""
    # Though the machine takes longer for those of the others than a reader may rest.
    monkeypatch.setattr("weft.engine.front.kv_publisher._STALLED_MS", PATIENCE_S * 1000)
    for number in range(2000):
        source.say(stored(*map(digest, range(number, number + 100))))
    context = zmq.asyncio.Context()
    idle = []
    for _ in range(MAX_REPLAYS - 1):
        reader = context.socket(zmq.DEALER)
        reader.setsockopt(zmq.RCVHWM, 1)
        reader.connect(source.replay)
        await reader.send_multipart([b"", bytes(8)])
        idle.append(reader)
    await until(lambda: len(source.publisher._replays) == MAX_REPLAYS - 1)
    with requester(source) as socket:
        assert [n for n, _ in await replayed(socket, 0)] == [*range(2000), END]
    assert 0 < len(source.publisher._replays) <= MAX_REPLAYS
    first = [await asyncio.wait_for(idle[0].recv_multipart(), PATIENCE_S) for _ in range(2001)]
    context.destroy(linger=0)
    assert first[-1][2] == b""


async def test_where_it_cannot_listen_is_said(tmp_path: Path):
    """With the flag, the field and the system's reason."""
    with pytest.raises(
        ConfigError, match=r"^--kv-events-config: endpoint ipc:///nowhere/at/all: \w"
    ):
        Source(tmp_path, endpoint="ipc:///nowhere/at/all")
    source = Source(tmp_path)
    with pytest.raises(ConfigError, match=r"replay_endpoint tcp://192.0.2.1:4000: "):
        Source(tmp_path, endpoint=f"ipc://{tmp_path}/other", replay_endpoint="tcp://192.0.2.1:4000")
    source.publisher.close()


async def test_the_log_says_who_sees_the_events(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Anyone who can connect reads a bound endpoint; only the listener reads a connected one."""
    caplog.set_level("INFO", "weft.engine")  # another test may have set the level of all of weft
    for endpoint, reach in (
        (f"ipc://{tmp_path}/own", "readable by anyone who can connect"),
        ("tcp://192.0.2.1:4000", "sent to the process that listens there"),
    ):
        caplog.clear()
        Source(tmp_path, endpoint=endpoint, replay_endpoint=None).publisher.close()
        assert [r.getMessage().rpartition(", ")[2] for r in caplog.records] == [reach]


ON = {"enable_kv_cache_events": True}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nonsense", "malformed"),
        ([], "Expected `object`, got `array`"),
        (ON | {"port": 1}, "port"),
        (ON | {"publisher": "kafka"}, "kafka"),
        (ON | {"endpoint": "http://127.0.0.1:1"}, "endpoint must be tcp://HOST:PORT or ipc://PATH"),
        (ON | {"endpoint": "tcp://*:0"}, "endpoint must be"),
        (ON | {"endpoint": "tcp://*:65536"}, "endpoint must be"),
        (ON | {"replay_endpoint": "inproc://a"}, "replay_endpoint must be"),
        (ON | {"buffer_steps": 0}, "buffer_steps must be between 1 and 100000, not 0"),
        (ON | {"hwm": 0}, "hwm must be between 1 and 1000000, not 0"),
        (ON | {"max_queue_size": -1}, "max_queue_size must be between 1 and"),
        (ON | {"topic": "x" * 256}, "topic must have at most 255 bytes"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(given: Any, words: str):
    """The flag, the field, and what is allowed."""
    with pytest.raises(ConfigError, match=r"^--kv-events-config") as error:
        read_kv_events(given, {})
    assert words in str(error.value)


@pytest.mark.parametrize(
    "given", [None, {}, {"enable_kv_cache_events": False}, ON | {"publisher": "null"}]
)
def test_switched_off_is_nothing(given: Any):
    """As it is to vLLM."""
    assert read_kv_events(given, {}) is None


@pytest.mark.parametrize(
    ("endpoint", "binds", "at_two"),
    [
        ("tcp://*:5557", True, "tcp://*:5559"),
        ("tcp://[::1]:5557", True, "tcp://[::1]:5559"),
        (f"tcp://{LOOPBACK}:5557", True, f"tcp://{LOOPBACK}:5559"),
        ("tcp://picker:5557", False, "tcp://picker:5559"),
        ("tcp://10.0.0.1:5557", False, "tcp://10.0.0.1:5559"),
        ("ipc:///run/events", True, "ipc:///run/events"),
        (None, True, "tcp://127.0.0.1:5559"),
    ],
)
def test_an_endpoint_is_bound_or_connected_to_as_vllm_decides(
    endpoint: str | None, binds: bool, at_two: str
):
    """By its host; without one it is loopback. Ports go by rank."""
    config = read_kv_events(ON | {"endpoint": endpoint}, {})
    assert config is not None
    assert (config.binds, at_rank(config.endpoint, 2)) == (binds, at_two)


def test_events_of_no_cache_are_refused():
    """A subscriber would wait for ever."""
    settings = EngineOptions(model=MODEL, kv_events_config=ON, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="--no-enable-prefix-caching"):
        resolve(settings, open_model(MODEL).card, 1 << 30)


async def test_an_engine_publishes_what_its_own_stream_has(tmp_path: Path):
    """The same numbers and blocks over ZeroMQ as over gRPC, and nothing is left of it after the end."""
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    events = ON | {"endpoint": live, "replay_endpoint": replay, "topic": TOPIC}
    async with process(kv_events_config=events) as client:
        for start in range(3):
            prompt = {"prompt_token_ids": list(range(start, start + 40))}
            async for _ in client.generate(
                prompt, SamplingParams(max_tokens=2), f"request-{start}"
            ):
                pass
        source = type("Place", (), {"replay": replay})
        with requester(source) as socket:  # type: ignore[arg-type]  # it has what is read of one
            *messages, _ = await replayed(socket, 0)
        stream = client.subscribe_kv_events(0)
        ours = [await anext(stream) for _ in messages]
        await stream.aclose()
    assert [n for n, _ in messages] == [batch.sequence_number for batch in ours] == [0, 1, 2]
    published = [msgspec.msgpack.decode(payload)[1] for _, payload in messages]
    hashes = [
        [int.from_bytes(each[-8:], "big") for e in b.events for each in e.block_hashes]
        for b in ours
    ]
    assert [[each for event in batch for each in event[1]] for batch in published] == hashes
