import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.busy import PATIENCE_S, is_within
from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import check_canary, refusal, request
from weft.core.errors import Unavailable
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.calls.service import is_alive
from weft.rpc.methods import METHODS_BY_SERVICE, SERVICE
from weft.rpc.server import RpcServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def health(channel: grpc.aio.Channel) -> HealthStub:
    """The standard health client."""
    return HealthStub(channel)


async def next_status(watch) -> int:
    """The next state that a watcher is told."""
    async with asyncio.timeout(PATIENCE_S):
        return (await watch.read()).status


@pytest.mark.parametrize("service", ["", *METHODS_BY_SERVICE])
async def test_all_service_names_are_served(health: HealthStub, service: str):
    """The whole server, and each service on it."""
    answer = await health.Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == SERVING


async def test_list_names_all(health: HealthStub):
    """The newer call of the same protocol."""
    answer = await health.List(health_pb2.HealthListRequest())

    assert {name: r.status for name, r in answer.statuses.items()} == dict.fromkeys(
        ["", "vllm.grpc.engine.VllmEngine", "vllm.Inference", "vllm.Control"], SERVING
    )


async def test_unknown_service_is_not_found(health: HealthStub, stub: VllmEngineStub):
    """Row 61 for Check; a watcher of one is told so and keeps waiting, as the protocol wants."""
    status, _ = await refusal(health.Check(health_pb2.HealthCheckRequest(service="nope")))
    watch = health.Watch(health_pb2.HealthCheckRequest(service="nope"))

    assert status == grpc.StatusCode.NOT_FOUND
    assert await next_status(watch) == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    await check_canary(stub)


async def test_watch_stays_open_and_tells_each_change(health: HealthStub, server: RpcServer):
    """One message now and one per change, not one message and the end."""
    watch = health.Watch(health_pb2.HealthCheckRequest())
    before = await next_status(watch)

    server.set_not_serving()

    assert (before, await next_status(watch)) == (SERVING, NOT_SERVING)
    assert not watch.done()
    watch.cancel()


async def test_dead_engine_shows_within_two_seconds(
    health: HealthStub, stub: VllmEngineStub, engine: FakeEngine
):
    """Health flips, open calls end with UNAVAILABLE, and so do new ones."""
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert await next_status(watch) == SERVING
    engine.hold()
    open_call = stub.Generate(request(stream=True))
    await engine.wait_for_open(1)

    began = time.monotonic()
    await engine.die()
    assert await next_status(watch) == NOT_SERVING
    status, detail = await refusal(open_call)
    assert is_within(time.monotonic() - began, 2)

    assert status == grpc.StatusCode.UNAVAILABLE
    assert "engine has stopped" in detail
    assert (await refusal(stub.Generate(request())))[0] == grpc.StatusCode.UNAVAILABLE
    answer = await stub.HealthCheck(pb.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (False, "Engine is not alive")
    watch.cancel()


async def test_stalled_engine_is_not_serving(health: HealthStub, engine: FakeEngine):
    """An engine that is alive but does not answer its own check is not healthy."""
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert await next_status(watch) == SERVING

    engine.is_stalled = True
    assert await next_status(watch) == NOT_SERVING

    engine.is_stalled = False
    assert await next_status(watch) == SERVING
    watch.cancel()


async def test_health_message_is_exactly_health(stub: VllmEngineStub):
    """Clients compare the text."""
    answer = await stub.HealthCheck(pb.HealthCheckRequest())

    assert (answer.healthy, answer.message) == (True, "Health")


async def test_server_that_is_leaving_is_not_healthy(stub: VllmEngineStub, server: RpcServer):
    """Gateways ask the engine's own call, not the standard one."""
    server.set_not_serving()

    answer = await stub.HealthCheck(pb.HealthCheckRequest())

    assert (answer.healthy, answer.message) == (False, "Server is not serving")


async def test_a_server_that_drains_says_so(stub: VllmEngineStub, server: RpcServer):
    """A fleet then moves its requests."""
    server.service.generate.close()

    answer = await stub.HealthCheck(pb.HealthCheckRequest())

    assert (answer.healthy, answer.message) == (False, "Server is draining")


@pytest.mark.parametrize(("error", "has_traceback"), [(Unavailable, False), (KeyError, True)])
async def test_a_check_that_fails_is_not_serving(error, has_traceback, caplog):
    """Whatever it fails with; what no engine should raise is logged with its traceback."""

    class Failing(FakeEngine):
        async def check_health(self) -> None:
            raise error("x")

    assert not await is_alive(Failing())
    assert ("Traceback" in caplog.text) is has_traceback
