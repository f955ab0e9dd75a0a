"""A server over a FakeEngine, on a port of the system's choosing."""

from collections.abc import AsyncIterator

import grpc
import pytest

from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import TOKENIZER_FILES
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer


@pytest.fixture
def engine() -> FakeEngine:
    """The engine behind the server."""
    return FakeEngine()


@pytest.fixture
def options() -> RpcOptions:
    """The server's settings; a test overrides this fixture or makes its own server."""
    return RpcOptions(port=0, heartbeat_s=0.05, health_interval_s=0.05)


@pytest.fixture
async def server(engine: FakeEngine, options: RpcOptions) -> AsyncIterator[RpcServer]:
    """A server that was not started."""
    server = RpcServer(engine, TOKENIZER_FILES, options)
    yield server
    await server.stop()


@pytest.fixture
async def target(server: RpcServer) -> str:
    """host:port of a started server."""
    return f"127.0.0.1:{await server.start()}"


@pytest.fixture
async def channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the server."""
    async with grpc.aio.insecure_channel(target) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> VllmEngineStub:
    """The generated client: it knows nothing of our own."""
    return VllmEngineStub(channel)
