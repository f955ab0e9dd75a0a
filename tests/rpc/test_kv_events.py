import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine, make_config
from tests.rpc.calls import channel_to, refusal
from weft.core.errors import Overloaded
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
)
from weft.pb import common_pb2
from weft.pb.common_pb2 import SubscribeKvEventsRequest
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.calls.kv_events import with_ticks
from weft.rpc.convert.incoming import _to_kv_event
from weft.rpc.convert.kv_events import to_event, to_int64

HASHES = [bytes([i]) * 32 for i in (1, 0xFF)]


def batch(number: int, *events: KvEvent) -> KvEventBatch:
    return KvEventBatch(sequence_number=number, timestamp=1.5, events=list(events))


async def read(call) -> common_pb2.KvEventBatch:
    """The next message, soon."""
    async with asyncio.timeout(PATIENCE_S):
        return await call.read()


async def read_until(
    call, is_last: Callable[[common_pb2.KvEventBatch], bool]
) -> list[common_pb2.KvEventBatch]:
    """Messages up to the one that is asked for: load records of before may be on their way to us."""
    messages = [await read(call)]
    while not is_last(messages[-1]):
        assert messages[-1].load.load_only
        messages.append(await read(call))
    return messages


def test_hash_is_the_signed_low_half():
    """Its last eight bytes, big endian."""
    assert to_int64(bytes(24) + (5).to_bytes(8, "big")) == 5
    assert to_int64(b"\x07" * 24 + b"\xff" * 8) == -1


def test_stored_blocks_carry_their_tokens():
    """A chain of blocks with its parent; each block has its own slice of the tokens."""
    stored = BlockStored(
        block_hashes=HASHES,
        parent_block_hash=HASHES[1],
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_name="l",
        cache_salt="s",
    )

    event = to_event(stored, 7)

    assert event == common_pb2.KvCacheEvent(
        event_id=7,
        stored=common_pb2.KvBlocksStored(
            parent_block_hash=-1,
            tier=common_pb2.KV_CACHE_TIER_DEVICE,
            lora_name="l",
            cache_salt="s",
            blocks=[
                common_pb2.KvBlock(block_hash=0x0101010101010101, token_ids=[1, 2], block_size=2),
                common_pb2.KvBlock(block_hash=-1, token_ids=[3, 4], block_size=2),
            ],
        ),
    )


def test_blocks_with_media_carry_their_hashes():
    """Else one with another picture would be taken for the same; and they come back as they were."""
    media = [[], [("red", -3), ("blue", 1)]]
    stored = BlockStored(
        block_hashes=HASHES,
        parent_block_hash=None,
        token_ids=[1, 2, 3, 4],
        block_size=2,
        media=media,
    )
    event = to_event(stored, 7)
    keys = [[key.multimodal for key in block.extra_keys] for block in event.stored.blocks]
    assert [[(key.identifier, key.offset) for key in of_block] for of_block in keys] == media
    assert _to_kv_event(event).media == media
    assert _to_kv_event(to_event(msgspec.structs.replace(stored, media=[]), 7)).media == []


def test_start_of_a_prompt_has_no_parent():
    """Unset, not 0: 0 is a hash."""
    stored = BlockStored(block_hashes=[], parent_block_hash=None, token_ids=[], block_size=2)

    assert not to_event(stored, 1).stored.HasField("parent_block_hash")


async def test_batches_are_relayed_in_order_with_load(stub: VllmEngineStub, engine: FakeEngine):
    """Sequence numbers are the engine's, event ids count, and the rank's load comes along."""
    engine.load = EngineLoad(num_running=3, max_running=8, max_total_tokens=10, num_used_tokens=5)
    await engine.publish(batch(0, BlockRemoved(block_hashes=HASHES), AllBlocksCleared()))
    call = stub.SubscribeKvEvents(SubscribeKvEventsRequest())

    first = await read(call)
    await engine.publish(batch(1, AllBlocksCleared()))
    *beats, second = await read_until(call, lambda message: not message.load.load_only)

    assert (first.sequence_number, first.dp_rank, first.timestamp) == (0, 0, 1.5)
    assert [(e.event_id, e.WhichOneof("data")) for e in first.events] == [
        (1, "removed"),
        (2, "cleared"),
    ]
    assert list(first.events[0].removed.block_hashes) == [0x0101010101010101, -1]
    assert (first.load.running_requests, first.load.token_usage) == (3, 0.5)
    assert not first.load.load_only
    assert second.sequence_number == 1
    assert second.events[0].event_id == 3
    assert second.load.sample == first.load.sample + len(beats) + 1
    call.cancel()


async def test_replay_starts_where_it_was_asked_to(stub: VllmEngineStub, engine: FakeEngine):
    """A subscriber that comes back continues without a hole."""
    for number in range(4):
        await engine.publish(batch(number))

    call = stub.SubscribeKvEvents(SubscribeKvEventsRequest(start_sequence_number=2))

    assert [(await read(call)).sequence_number for _ in range(2)] == [2, 3]
    call.cancel()


async def test_idle_stream_carries_load_records(stub: VllmEngineStub, engine: FakeEngine):
    """Heartbeats have no events, repeat the last number, and carry the fuller load."""
    await engine.publish(batch(0))
    await engine.publish(batch(1))
    call = stub.SubscribeKvEvents(SubscribeKvEventsRequest())
    for _ in range(2):
        await read(call)
    engine.load = EngineLoad(
        num_waiting=4, cache_hit_rate=0.5, num_used_tokens=7, max_total_tokens=28
    )

    *_, beat = await read_until(call, lambda message: message.load.waiting_requests == 4)

    assert (beat.sequence_number, len(beat.events)) == (1, 0)
    assert beat.load.load_only
    assert (beat.load.waiting_requests, beat.load.cache_hit_rate) == (4, 0.5)
    assert (beat.load.num_used_tokens, beat.load.max_total_num_tokens) == (7, 28)
    assert (await read(call)).load.sample == beat.load.sample + 1
    call.cancel()


async def test_load_records_count_adapters(stub: VllmEngineStub, engine: FakeEngine):
    """Where there can be any; batches and heartbeats alike."""
    await engine.publish(batch(0))
    call = stub.SubscribeKvEvents(SubscribeKvEventsRequest())
    assert not (await read(call)).load.HasField("lora")
    engine.load = EngineLoad(num_loras=1, max_loras=4)
    expected = common_pb2.EngineLora(slots_used=1, slots_total=4, utilization=0.25)
    *_, beat = await read_until(call, lambda message: message.load.HasField("lora"))
    assert beat.load.lora == expected
    await engine.publish(batch(1))
    *_, second = await read_until(call, lambda message: not message.load.load_only)
    assert second.load.lora == expected
    call.cancel()


async def test_load_records_before_the_first_batch_need_asking(
    stub: VllmEngineStub, engine: FakeEngine
):
    """An older subscriber would take one for a repeated batch number 0."""
    new = stub.SubscribeKvEvents(SubscribeKvEventsRequest(load_records_before_first_batch=True))
    old = stub.SubscribeKvEvents(SubscribeKvEventsRequest())

    beats = [await read(new) for _ in range(3)]
    await engine.publish(batch(0, AllBlocksCleared()))

    assert all(beat.load.load_only and beat.sequence_number == 0 for beat in beats)
    assert [len((await read(old)).events)] == [1]
    new.cancel()
    old.cancel()


async def test_dead_engine_ends_subscribers(stub: VllmEngineStub, engine: FakeEngine):
    """UNAVAILABLE, so that they look for another one."""
    call = stub.SubscribeKvEvents(SubscribeKvEventsRequest())
    await call.initial_metadata()

    await engine.die()

    assert (await refusal(call))[0] == grpc.StatusCode.UNAVAILABLE


@pytest.fixture
async def uncached() -> AsyncIterator[VllmEngineStub]:
    """A server whose engine has no prefix cache."""
    config = make_config()
    cache = msgspec.structs.replace(config.cache_config, enable_prefix_caching=False)
    engine = FakeEngine(msgspec.structs.replace(config, cache_config=cache))
    async with channel_to(engine) as channel:
        yield VllmEngineStub(channel)


async def test_without_a_prefix_cache_there_are_no_events(uncached: VllmEngineStub):
    """UNIMPLEMENTED: gateways accept that and go on."""
    status, detail = await refusal(uncached.SubscribeKvEvents(SubscribeKvEventsRequest()))

    assert status == grpc.StatusCode.UNIMPLEMENTED
    assert "prefix caching is off" in detail


async def test_ticks_end_with_their_source():
    """Items, silence, and the end: in that order."""
    has_ticked = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        await has_ticked.wait()
        yield 2

    seen = []
    async with asyncio.timeout(PATIENCE_S):
        async for item in with_ticks(source(), 0.02):
            seen.append(item)
            if item is None:
                has_ticked.set()

    assert [item for item in seen if item is not None] == [1, 2]


async def test_who_ticks_reads_a_little_ahead():
    """Not one item for each turn of the loop, which others need; nor all that there is, which others read late."""
    reached = 0

    async def source() -> AsyncIterator[int]:
        nonlocal reached
        for reached in range(100):
            yield reached

    ticking, seen = with_ticks(source(), PATIENCE_S), []
    async for item in ticking:
        seen.append(item)
        assert reached - item < 10
        if item == 50:
            await asyncio.sleep(0.01)
            assert reached - item > 4
    assert seen == list(range(100))


async def test_the_error_of_a_source_comes_behind_its_items():
    """Nothing is lost that was there before it."""

    async def source() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise Overloaded("too slow")

    ticking = with_ticks(source(), PATIENCE_S)
    assert [await anext(ticking), await anext(ticking)] == [1, 2]
    with pytest.raises(Overloaded):
        await anext(ticking)


async def test_closed_ticks_close_their_source():
    """A subscriber that leaves in the middle of a silence leaves nothing running."""
    is_closed = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            is_closed.set()

    ticking = with_ticks(source(), 0.01)
    assert await anext(ticking) is None

    await ticking.aclose()

    assert is_closed.is_set()
