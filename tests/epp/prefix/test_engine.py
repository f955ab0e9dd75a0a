"""Workers over gRPC: a picker that follows a real Weft server with a fake engine behind it."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.contract.engines import local
from tests.doubles.fake_engine import FakeEngine
from tests.epp.pools import HEAD, opened, request, until
from tests.ports import free_port
from tests.rpc.calls import TOKENIZER_FILES
from weft.core.client import EngineClient
from weft.core.errors import ConfigError
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
)
from weft.core.values.types import SamplingParams
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.pool.pool import reachable
from weft.epp.prefix.engine import to_batch, to_load
from weft.epp.prefix.events import decode_batch
from weft.pb import common_pb2, vllm_engine_pb2
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

CONFIG = (
    HEAD + "plugins:\n- type: queue-scorer\n"
    "- {type: precise-prefix-cache-producer, name: p,"
    " parameters: {tokenProcessorConfig: {blockSizeTokens: 2}}}\n"
    "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: p}}\n"
)
HASHES = [bytes([i]) * 32 for i in range(9)]


@pytest.fixture
def engine() -> FakeEngine:
    """The engine behind the worker."""
    return FakeEngine()


@pytest.fixture
async def worker(engine: FakeEngine) -> AsyncIterator[str]:
    """host:port of a worker."""
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=0, heartbeat_s=0.05))
    yield f"127.0.0.1:{await server.start()}"
    await server.stop()


@pytest.fixture
async def picker(worker: str) -> AsyncIterator[Picker]:
    """A picker over that worker and one endpoint that is not there."""
    options = PickerOptions(
        config_text=CONFIG, endpoints=(worker, "127.0.0.2:1"), default_engine="vllm-grpc",
        refresh_metrics_interval_s=0.05,
    )  # fmt: skip
    picker = await open_picker(options)
    yield picker
    await picker.close()


def batch(number: int, *events: KvEvent) -> KvEventBatch:
    return KvEventBatch(sequence_number=number, timestamp=1.5, events=list(events))


def stored(*numbers: int, parent: int | None = None) -> BlockStored:
    """Blocks by number, of two tokens each."""
    return BlockStored(
        block_hashes=[HASHES[n] for n in numbers],
        parent_block_hash=None if parent is None else HASHES[parent],
        token_ids=[token for n in numbers for token in (n, n)],
        block_size=2,
    )


async def cached(picker: Picker, num_blocks: int) -> dict[str, int]:
    """Cached tokens, by endpoint, of a prompt made of blocks 0, 1, 2..."""
    tokens = [token for n in range(num_blocks) for token in (n, n)]
    await picker.director.pick(request(*tokens), None)
    return picker.decisions.get("r").cached_tokens.get("p", {})


async def until_cached(picker: Picker, num_blocks: int, expected: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await cached(picker, num_blocks) != expected:  # noqa: ASYNC110 - asked, not told
            await asyncio.sleep(0.02)


async def test_events_of_workers_reach_the_scorers(picker: Picker, engine: FakeEngine, worker: str):
    """Stored, removed, cleared; what came before the subscription too."""
    await engine.publish(batch(0, stored(0, 1)))
    await engine.publish(batch(1, stored(2, parent=1)))
    await until_cached(picker, 3, {worker: 6})
    assert (await picker.director.pick(request(0, 0, 1, 1), None)).endpoints == (worker,)
    await engine.publish(batch(2, BlockRemoved(block_hashes=[HASHES[1]])))
    await until_cached(picker, 3, {worker: 2})
    await engine.publish(batch(3, AllBlocksCleared()))
    await until_cached(picker, 3, {})


async def test_workers_that_want_keys_are_followed(engine: FakeEngine):
    """Load with the API key, events with the control key: they hold the tokens of everybody's prompts."""
    keys = {"api_keys": ("user",), "control_api_keys": ("admin",)}
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=0, heartbeat_s=0.05, **keys))
    worker = f"127.0.0.1:{await server.start()}"
    picker = await open_picker(PickerOptions(
        config_text=CONFIG, endpoints=(worker,), default_engine="vllm-grpc",
        refresh_metrics_interval_s=0.05, engine_api_key="user", engine_control_api_key="admin",
    ))  # fmt: skip
    await engine.publish(batch(0, stored(0)))
    await until_cached(picker, 1, {worker: 2})
    (endpoint,) = picker.pool
    await until(lambda: endpoint.loaded_at is not None)
    await picker.close()
    await server.stop()


@pytest.mark.parametrize("value", [" ", "two words", "key\n"])
@pytest.mark.parametrize("name", ["engine_api_key", "engine_control_api_key"])
def test_what_is_no_key_is_refused(name: str, value: str):
    """An unset variable in a start script, or a secret made of a file with its newline: no header could carry it."""
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        PickerOptions(**{name: value})


async def test_gap_clears_the_endpoint(picker: Picker, engine: FakeEngine, worker: str):
    """What was missed may have been a removal."""
    await engine.publish(batch(0, stored(0)))
    await until_cached(picker, 1, {worker: 2})
    await engine.publish(batch(5, BlockStored(
        block_hashes=[HASHES[7]], parent_block_hash=None, token_ids=[7, 7], block_size=2
    )))  # fmt: skip
    await until_cached(picker, 1, {})
    (first, _) = picker.pool
    index = picker.assembly.plugins["p"].index
    assert index.num_blocks(first) == 1


@pytest.mark.parametrize("repeated", [[], ["ad", "salt"]], ids=["ours", "vLLM's"])
def test_what_tells_blocks_apart_is_the_same_over_zmq(repeated: list[str]):
    """A first block has its media and its salt; adapter and salt are fields, and vLLM repeats them as keys."""
    keys = [["ad", ["img", 3], "salt"], ["ad", ["img", 2]]]
    event = ["BlockStored", [1, 2], None, [7, 8], 1, None, None, "ad", keys]
    (expected,) = decode_batch(msgspec.msgpack.encode([0.0, [event]]))
    blocks = [
        common_pb2.KvBlock(block_hash=number + 1, token_ids=[7 + number], block_size=1, extra_keys=[
            {"multimodal": {"identifier": "img", "offset": 3 - number}},
            *({"text": text} for text in repeated),
        ])
        for number in range(2)
    ]  # fmt: skip
    del blocks[1].extra_keys[2:]  # the salt is of the first block
    stored = common_pb2.KvBlocksStored(blocks=blocks, lora_name="ad", cache_salt="salt")
    read = to_batch(common_pb2.KvEventBatch(events=[common_pb2.KvCacheEvent(stored=stored)]))
    assert [extra for event in read.events for extra in event.extras] == expected.extras


@pytest.mark.parametrize(
    ("usage", "share"), [(math.nan, 0.0), (math.inf, 1.0), (-1.0, 0.0), (0.5, 0.5)]
)
def test_what_a_worker_reports_is_a_share(usage: float, share: float):
    """A mean over the pool would be no number with it, and nobody would be sent on."""
    rank = vllm_engine_pb2.SchedulerLoad(token_usage=usage, num_waiting_reqs=-3)
    asked = to_load(vllm_engine_pb2.GetLoadsResponse(loads=[rank]))
    sent = to_batch(common_pb2.KvEventBatch(load=common_pb2.EngineLoad(token_usage=usage))).load
    assert sent is not None
    assert (asked.kv_usage, asked.num_waiting, sent.kv_usage) == (share, 0, share)


async def test_load_of_workers_is_asked_for(picker: Picker):
    """By GetLoads: workers have no metrics page. An absent worker stays unknown and visible."""
    worker, absent = picker.pool
    await until(lambda: worker.loaded_at is not None)
    await until(lambda: absent.num_poll_failures > 1)
    assert absent.loaded_at is None
    assert list(reachable(picker.pool.ready)) == [worker]
    text = (await picker.metrics_text()).decode()
    assert 'llm_d_epp_flow_control_stale_endpoints{detector="utilization-detector"} 1.0' in text


async def test_what_cannot_be_closed_leaves_nothing_else_open(picker: Picker):
    """The failure is told; all that come behind it are closed."""
    closed = []

    async def fail() -> None:
        raise OSError("in use")

    async def close() -> None:
        closed.append(True)

    picker.on_close(fail)
    picker.on_close(close)
    with pytest.raises(OSError, match="in use"):
        await picker.close()
    assert closed


async def test_picker_closes_twice_without_a_trace(picker: Picker):
    """No task outlives it."""
    before = {task for task in asyncio.all_tasks() if "kv-events" in task.get_name()}
    assert before
    await picker.close()
    await picker.close()
    assert all(task.done() for task in before)


async def test_unknown_engine_is_refused_at_start():
    """A typo must not mean another server's metrics."""
    with pytest.raises(ConfigError, match="default engine: 'vlmm' is unknown; known: vllm-grpc"):
        await open_picker(PickerOptions(endpoints=("10.0.0.1:1",), default_engine="vlmm"))


async def test_certificates_that_cannot_be_read_stop_the_start():
    """Rather than every poll."""
    source = "{type: metrics-data-source, parameters: {scheme: https, caCertPath: /no/such/file}}"
    with pytest.raises(ConfigError, match="a certificate cannot be read"):
        await open_picker(PickerOptions(config_text=HEAD + f"plugins: [{source}]"))


# -- over ZeroMQ ------------------------------------------------------------------------------


def zmq_config(**events: object) -> str:
    """The usual plugins over events that come from an engine's own publisher."""
    parameters = {"tokenProcessorConfig": {"blockSizeTokens": 16}, "kvEventsConfig": events}
    return (
        HEAD + "plugins:\n- type: queue-scorer\n- {type: precise-prefix-cache-producer, name: p,"
        f" parameters: {json.dumps(parameters)}}}\n"
        "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: p}}\n"
    )


async def generate(engine: EngineClient, first: int, **options: str) -> list[int]:
    """A prompt of two blocks and a half, now in the engine's cache."""
    tokens = list(range(first, first + 40))
    prompt = {"prompt_token_ids": tokens, **options}
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=1), f"request-{first}"):
        pass
    return tokens


async def found(picker: Picker, tokens: list[int]) -> dict[str, int]:
    """Cached tokens of this prompt by endpoint."""
    await picker.director.pick(request(*tokens), None)
    return picker.decisions.get("r").cached_tokens.get("p", {})


async def test_an_engine_of_ours_is_followed_over_zmq_as_over_grpc():
    """Also what it computed before the picker was there; what it drops, the picker drops."""
    live, replay = free_port(), free_port()
    loopback = dict(socket.if_nameindex())[1]
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://{loopback}:{live}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
        "topic": "kv@here@small",
    }
    config = zmq_config(podDiscoveryConfig={"socketPort": live, "replaySocketPort": replay})
    options = PickerOptions(config_text=config, endpoints=("127.0.0.1:1", "127.0.0.2:1"))
    async with local(kv_events_config=events) as engine:
        early, salted = await generate(engine, 2), await generate(engine, 50, cache_salt="mine")
        async with opened(options) as picker:
            await until_found(picker, early, {"127.0.0.1:1": 32})
            assert await found(picker, salted) == {}
            late = await generate(engine, 100)
            await until_found(picker, late, {"127.0.0.1:1": 32})
            await engine.reset_prefix_cache()
            await until_found(picker, early, {})


async def test_an_engine_of_ours_publishes_to_a_picker_that_listens():
    """An endpoint with a name is connected to, as vLLM's is; the topic says whose events they are."""
    port = free_port()
    place = f"tcp://127.0.0.1:{port}"
    options = PickerOptions(
        config_text=zmq_config(zmqEndpoint=place, discoverPods=False),
        endpoints=("127.0.0.1:1", "127.0.0.2:1"),
    )
    picker = await open_picker(options)
    topic = "kv@127.0.0.2:1@small"
    events = {"enable_kv_cache_events": True, "endpoint": place, "topic": topic}
    try:
        async with local(kv_events_config=events) as engine, asyncio.timeout(PATIENCE_S):
            for first in count(3):  # what is published before the picker has subscribed is lost
                tokens = await generate(engine, first)
                with suppress(TimeoutError):
                    await until_found(picker, tokens, {"127.0.0.2:1": 32}, patience_s=0.5)
                    break
    finally:
        await picker.close()


async def until_found(
    picker: Picker, tokens: list[int], expected: dict[str, int], patience_s: float = PATIENCE_S
) -> None:
    async with asyncio.timeout(patience_s):
        while await found(picker, tokens) != expected:  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.02)
