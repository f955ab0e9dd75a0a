"""Deadlines, callers that leave, drain and stop: nothing keeps running, and nobody is left waiting."""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest

from tests.busy import PATIENCE_S, until
from tests.doubles.fake_engine import FakeEngine, make_config, reference_tokens
from tests.rpc.calls import PROMPT, TOKENIZER_FILES, check_canary, refusal, request
from weft.core.errors import ConfigError
from weft.core.values.types import SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.boundary import CallWriter
from weft.rpc.methods import METHODS
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

# -- deadlines --------------------------------------------------------------------------------


async def deadlines_until_one_reached(
    stub: VllmEngineStub, engine: FakeEngine, stream: bool
) -> AsyncIterator[grpc.StatusCode]:
    """How calls with longer and longer deadlines end, until one has come as far as the engine."""
    for timeout_s in (0.1, 1, 10, PATIENCE_S):
        if not engine.dropped:
            yield (await refusal(stub.Generate(request(stream), timeout=timeout_s)))[0]
            await engine.wait_for_open(0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_deadline_ends_the_request_in_the_engine(
    stub: VllmEngineStub, engine: FakeEngine, stream: bool
):
    """Rows 18 and 55: DEADLINE_EXCEEDED, and the engine's request is gone."""
    engine.hold()

    statuses = [status async for status in deadlines_until_one_reached(stub, engine, stream)]

    assert set(statuses) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    await engine.wait_for_open(0)
    assert engine.dropped
    await engine.run_freely()
    await check_canary(stub)


async def test_deadline_in_the_past_never_reaches_the_engine(
    stub: VllmEngineStub, engine: FakeEngine
):
    """Row 18."""
    status, _ = await refusal(stub.Generate(request(), timeout=-1))

    assert status == grpc.StatusCode.DEADLINE_EXCEEDED
    assert engine.calls == []
    await check_canary(stub)


async def test_server_keeps_the_deadline_by_itself(server: RpcServer, engine: FakeEngine):
    """Also when nothing tells it that the caller gave up: proxies may hold the call open."""
    engine.hold()
    context = LateContext()

    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(call_handler(server, "Generate", request(), context), PATIENCE_S)

    assert context.aborted_with[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert engine.num_active_requests == 0


class LateContext:
    """A call whose deadline is near and which is never cancelled."""

    def __init__(self) -> None:
        self.aborted_with: tuple[Any, str] = (None, "")

    def time_remaining(self) -> float:
        return 0.05

    def cancelled(self) -> bool:
        return False

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def send_initial_metadata(self, _metadata: Any) -> None:
        return None

    async def abort(self, status: grpc.StatusCode, detail: str, _trailing: Any) -> None:
        self.aborted_with = status, detail
        raise grpc.aio.AbortError


class CallDetails:
    """Names one call to a handler."""

    invocation_metadata = ()

    def __init__(self, name: str) -> None:
        self.method = METHODS[name].path


async def call_handler(server: RpcServer, name: str, message: Any, context: Any) -> None:
    """Serve one call without a connection."""
    handler = server.service.handlers()[0].service(CallDetails(name))
    await handler.unary_stream(message, context)


# -- callers that leave -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_outputs", [0, 1], ids=["queued", "running"])
async def test_cancelled_call_ends_the_request(
    stub: VllmEngineStub, engine: FakeEngine, stream: bool, num_outputs: int
):
    """In every phase: before the first token, and between tokens."""
    engine.hold()
    call = stub.Generate(request(stream, request_id="gone"))
    await engine.wait_for_open(1)
    await engine.allow(num_outputs)

    call.cancel()

    await engine.wait_for_open(0)
    assert engine.dropped == ["gone"]
    await engine.run_freely()
    await check_canary(stub)


async def test_lost_connection_ends_the_request(target: str, engine: FakeEngine):
    """A channel that closes takes its calls with it."""
    engine.hold()
    channel = grpc.aio.insecure_channel(target)
    call = VllmEngineStub(channel).Generate(request(True))
    await engine.wait_for_open(1)

    await channel.close()

    await engine.wait_for_open(0)
    assert call.done()


async def test_reader_that_stops_reading_ends_its_request(caplog):
    """Without progress the engine's request goes; who reads on is told, and nothing is logged."""
    config = make_config(max_model_len=100_000)
    pool = msgspec.structs.replace(config.cache_config, num_blocks=100_000)
    engine = FakeEngine(msgspec.structs.replace(config, cache_config=pool))
    engine.tokens_per_output = 64
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=0, write_timeout_s=0.3))
    args = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    target = f"127.0.0.1:{await server.start()}"
    async with grpc.aio.insecure_channel(target, options=args) as channel:
        call = VllmEngineStub(channel).Generate(
            request(True, max_tokens=90_000, logprobs=200, request_id="slow")
        )
        await engine.wait_for_open(1)

        async with asyncio.timeout(PATIENCE_S):
            await engine.wait_for_open(0)

        assert engine.dropped == ["slow"]
        status, detail = await refusal(call)
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "read nothing for 0.3 s" in detail
        await check_canary(VllmEngineStub(channel))
    await server.stop()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_reader_that_stops_reading_and_leaves_is_forgotten():
    """The same, when the caller goes without having read on."""
    engine = FakeEngine()
    outputs = engine.generate(PROMPT, SamplingParams(max_tokens=50), "gone")
    await anext(outputs)

    async def write():
        async with CallWriter(StuckContext(), outputs, timeout_s=0.05) as writer:
            await writer.write(pb.GenerateResponse())

    writing = asyncio.create_task(write())
    await engine.wait_for_open(0)

    writing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await writing
    assert engine.dropped == ["gone"]


class StuckContext:
    """A call whose writes never end."""

    async def write(self, _message: Any) -> None:
        await asyncio.Event().wait()


async def test_a_thousand_dropped_calls_leave_nothing(stub: VllmEngineStub, engine: FakeEngine):
    """No request, no id and no task is left, whenever the caller goes."""
    await check_canary(stub)
    tasks_before = len(asyncio.all_tasks())
    engine.hold()
    for round_number in range(20):
        calls = [stub.Generate(request(bool(i % 2), n=1 + i % 3)) for i in range(50)]
        await engine.allow(round_number)
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*(call.code() for call in calls))
        await engine.wait_for_open(0)

    await engine.run_freely()
    await check_canary(stub)
    gc.collect()
    await until(lambda: engine.num_active_requests == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before + 2)


# -- drain and stop ---------------------------------------------------------------------------


async def test_drain_lets_open_streams_finish(
    stub: VllmEngineStub, server: RpcServer, engine: FakeEngine
):
    """New work is UNAVAILABLE at once; what is open ends as if nothing had happened."""
    engine.hold()
    call = stub.Generate(request(True))
    await engine.wait_for_open(1)
    drain = asyncio.create_task(server.drain(30))
    await asyncio.sleep(0)

    status, detail = await refusal(stub.Generate(request()))
    await engine.run_freely()
    answers = [answer async for answer in call]
    await drain

    assert status == grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in detail
    assert answers[-1].complete.finish_reason == "length"
    ids = [token for answer in answers for token in answer.chunk.token_ids]
    assert ids == reference_tokens(PROMPT, 3)


async def test_drain_aborts_what_does_not_finish_in_time(
    stub: VllmEngineStub, server: RpcServer, engine: FakeEngine
):
    """The last message says "abort" and the status is OK: the caller keeps what it got."""
    engine.hold()
    calls = [stub.Generate(request(stream)) for stream in (True, False)]
    await engine.wait_for_open(2)

    await server.drain(0.05)

    for call in calls:
        answers = [answer async for answer in call]
        assert answers[-1].complete.finish_reason == "abort"
        assert await call.code() == grpc.StatusCode.OK


async def test_drain_of_an_idle_server_is_immediate(server: RpcServer, target: str):
    """Nothing to wait for."""
    async with asyncio.timeout(PATIENCE_S):
        await server.drain(10 * PATIENCE_S)

    async with grpc.aio.insecure_channel(target) as channel:
        status, _ = await refusal(VllmEngineStub(channel).HealthCheck(pb.HealthCheckRequest()))
    assert status == grpc.StatusCode.UNAVAILABLE


async def test_drain_ends_even_if_the_engine_is_dead(server: RpcServer, engine: FakeEngine):
    """Aborting in a dead engine has nothing to do."""
    await server.start()
    await engine.die()

    async with asyncio.timeout(PATIENCE_S):
        await server.drain(0)


async def test_stop_ends_open_calls_with_unavailable(
    stub: VllmEngineStub, server: RpcServer, engine: FakeEngine
):
    """A broken stream does not look complete; stopping twice is harmless."""
    engine.hold()
    call = stub.Generate(request(True))
    await engine.wait_for_open(1)

    await server.stop()
    await server.stop()

    assert (await refusal(call))[0] == grpc.StatusCode.UNAVAILABLE
    await engine.wait_for_open(0)


async def test_port_in_use_is_one_clear_sentence(
    server: RpcServer, target: str, engine: FakeEngine
):
    """Row 70: the address and the flag; the second server does not steal connections."""
    port = int(target.split(":")[1])
    second = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=port))

    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*--grpc-port"):
        await second.start()


async def test_port_of_another_program_is_refused(engine: FakeEngine):
    """Not only our own."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=port))

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            await server.start()


def test_ipv6_hosts_are_put_in_brackets():
    """As addresses want it."""
    addresses = [RpcOptions(host=host, port=1).address for host in ("::1", "[::1]", "localhost")]

    assert addresses == ["[::1]:1", "[::1]:1", "localhost:1"]
