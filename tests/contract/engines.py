"""Every `EngineClient`, started and stopped for the contract suite."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.secret_file import secret_file
from tests.ports import free_port
from tests.rpc import calls
from weft.core.client import EngineClient
from weft.core.config.engine import EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.config.ranks import LinkConfig, RanksConfig
from weft.engine.api_servers.attached import AttachedServer
from weft.engine.api_servers.client import ApiServerClient
from weft.engine.api_servers.messages import FromServer, ToServer
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.front.socket_directory import SocketDirectory
from weft.engine.ipc.channel import Channel
from weft.engine.nodes.head import start_head
from weft.engine.nodes.node import Node
from weft.engine.start.configure import resolve
from weft.model.open import Checkpoint, open_model
from weft.rpc.client import RpcClient
from weft.rpc.fleet import Fleet

MODEL = (
    "embedded:random?layers=2&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=400"
)
GIB = 1 << 30
# Where an answer without a limit takes minutes: it ends when it is ended, however late that is.
ROOM = {
    "model": f"{MODEL}&max_len=16384",
    "max_model_len": 16_384,
    "num_gpu_blocks_override": 2_048,
}


def resolved(
    model: str = MODEL, ranks: RanksConfig | None = None, **options
) -> tuple[Checkpoint, EngineConfig]:
    """A small engine's model, and what it runs with."""
    settings = EngineOptions(
        model=model, **{"max_model_len": 256, "num_gpu_blocks_override": 64, **options}
    )
    checkpoint = open_model(settings.model, runner=settings.runner)
    return checkpoint, resolve(settings, checkpoint.card, GIB, ranks)


async def start(client_class, metrics=None, api_server_directory=None, **options):
    """A client of that class, or by that function, on a small engine."""
    checkpoint, config = resolved(**options)
    config = msgspec.structs.replace(config, api_server_directory=api_server_directory)
    begin = getattr(client_class, "start", client_class)
    return await begin(checkpoint, config, metrics)


async def stop(client: EngineClient) -> None:
    """Stop an engine and wait for its end."""
    client.shutdown()
    await client.wait_closed()


@asynccontextmanager
async def running_engine(client_class=LocalClient, metrics=None, **options):
    """As `start`, until the end of the block."""
    client = await start(client_class, metrics, **options)
    try:
        yield client
    finally:
        await stop(client)


local = running_engine
process = partial(running_engine, ProcessClient)
data_parallel = partial(running_engine, DataParallelClient, data_parallel_size=2)


@asynccontextmanager
async def nodes(link: LinkConfig | None = None, **options) -> AsyncIterator[EngineClient]:
    """An engine here and one at a node, which is of this process too."""
    link = link or LinkConfig("127.0.0.1", free_port(), secret_file())
    async with node(link, **options), head(link, **options) as client:
        yield client


def head(link: LinkConfig, num_local: int = 1, **options):
    """The first of two ranks, and who listens for the others."""
    ranks = RanksConfig(start=0, num_local=num_local, link=link)
    return running_engine(start_head, ranks=ranks, **{"data_parallel_size": 2, **options})


@asynccontextmanager
async def node(link: LinkConfig, num_local: int = 1, **options) -> AsyncIterator[Node]:
    """The last of two ranks, on a machine without a server; ended at once."""
    ranks = RanksConfig(start=2 - num_local, num_local=num_local, link=link, is_headless=True)
    checkpoint, config = resolved(ranks=ranks, **{"data_parallel_size": 2, **options})
    found = Node(config, checkpoint.tokenizer_files)
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def served(**options) -> AsyncIterator[str]:
    """The address of a gRPC server with an engine of its own."""
    async with local(**options) as engine:
        files = open_model(engine.model_config.model).tokenizer_files
        async with calls.served(engine, files) as target:
            yield target


@asynccontextmanager
async def rpc(**options) -> AsyncIterator[EngineClient]:
    """The engine behind a gRPC server."""
    async with served(**options) as target:
        client = await RpcClient.connect(target)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def fleet(**options) -> AsyncIterator[EngineClient]:
    """Two engines behind gRPC servers, as one."""
    async with served(**options) as first, served(**options) as second:
        client = await Fleet.connect([first, second])
        try:
            yield client
        finally:
            await stop(client)


@asynccontextmanager
async def fake(**options) -> AsyncIterator[EngineClient]:
    """The double that other tests use."""
    assert not options
    yield FakeEngine()


@asynccontextmanager
async def api_server(behind=process, **options) -> AsyncIterator[ApiServerClient]:
    """The engine in a child process, from one of the API servers before it; the supervisor is here too."""
    sockets = SocketDirectory()
    directory = sockets.path
    try:
        async with behind(api_server_directory=str(directory), **options) as engine:
            ours, theirs = socket.socketpair()

            async def tell() -> None:
                await attached.use(engine.vllm_config, [*engine.lora_requests.values()])

            async def expose() -> bytes:
                return b""

            attached = AttachedServer(await Channel.open(ours, FromServer), engine, tell, expose)
            serving = asyncio.create_task(attached.serve())
            beating = asyncio.create_task(attached.heartbeat.silence())  # as the supervisor does
            try:
                client = await ApiServerClient.open(
                    "0.0", await Channel.open(theirs, ToServer), engine.vllm_config, engine.renderer
                )
                yield client
                await stop(client)
            finally:
                beating.cancel()
                theirs.close()
                await serving
    finally:
        sockets.remove()


ENGINES = {
    "api_server": api_server,
    "local": local,
    "process": process,
    "data_parallel": data_parallel,
    "nodes": nodes,
    "rpc": rpc,
    "fleet": fleet,
    "fake": fake,
}


Lender = Callable[[str], AbstractAsyncContextManager[EngineClient]]


@asynccontextmanager
async def shared(**options) -> AsyncIterator[Lender]:
    """Engines that one test after the other uses: each kind starts for the first test that asks for it."""
    started: dict[str, EngineClient] = {}

    @asynccontextmanager
    async def lent(kind: str) -> AsyncIterator[EngineClient]:
        if kind not in started:
            started[kind] = await stack.enter_async_context(ENGINES[kind](**options))
        yield started[kind]
        if await started[kind].is_paused():
            await started[kind].resume_generation()
        await until_idle(started[kind])

    async with AsyncExitStack() as stack:
        yield lambda kind: fake() if kind == "fake" else lent(kind)


async def until_idle(engine: EngineClient) -> None:
    """Wait until the engine holds no block and runs nothing."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            load = (await engine.get_loads())[0]
            if not (load.num_running or load.num_waiting or load.num_held_blocks):
                return
            await asyncio.sleep(0.01)


_SLOW = ("data_parallel", "nodes", "api_server")


def kinds(*names: str) -> list[object]:
    """The clients of these names, or all, as parameters; two processes a test are slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=slow) if name in _SLOW else name for name in names or ENGINES]
