"""A picker with a fake director, fake workers of both kinds, and a real Envoy before them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from tests.busy import PATIENCE_S
from tests.doubles.fake_director import FakeDirector, make_ticket
from tests.e2e.envoys import Running, envoy
from tests.e2e.workers import GrpcWorker, HttpWorker, grpc_worker, http_worker
from weft.cli.up.envoy import EnvoyPlan
from weft.epp.decision.tickets import Decision
from weft.epp.request.values import InferenceRequest
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import PickerServer
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

PARSERS = ("openai-parser", "vllmgrpc-parser", "passthrough-parser")
CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
MAX_BODY_BYTES = 32 * 2**20
# Of every plan: what the fixture `body_mode` chooses.
buffered_bytes: int | None = None
STREAMED = b'{"model":"m","messages":[{"role":"user","content":"Hello"}],"stream":true}'


@dataclass(slots=True)
class Scene:
    """All there is. The second worker of each kind is the one that is chosen."""

    director: FakeDirector
    server: PickerServer
    http: list[HttpWorker]
    grpc: list[GrpcWorker]
    client: httpx2.AsyncClient
    stub: VllmEngineStub
    envoy: Running

    async def kill_picker(self) -> None:
        """It is gone without a word; Envoy's next health check has noticed."""
        await self.server.stop()
        async with asyncio.timeout(PATIENCE_S):
            await self.envoy.wait_for("/clusters?filter=^picker$", b"failed_active_hc")

    async def post(self, body: bytes = CHAT, path: str = "/v1/chat/completions", **headers: str):
        """One request; `_` in a header's name stands for `-`."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, content=body, headers=names)


def split(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def scene(
    plan: EnvoyPlan | None = None,
    *,
    through: Callable[[int], Awaitable[int]] | None = None,
    **decision: Any,
) -> AsyncIterator[Scene]:
    """Two workers of each kind on addresses of their own. `through` gives the port in place of the picker's."""
    async with AsyncExitStack() as stack:
        http = [await stack.enter_async_context(http_worker(f"127.0.0.{n}")) for n in (2, 3)]
        engines = [await stack.enter_async_context(grpc_worker(f"127.0.0.{n}")) for n in (2, 3)]
        director = FakeDirector(endpoints=(http[1].address, engines[1].address))

        def choose(request: InferenceRequest) -> Decision:
            worker = engines[1] if request.is_grpc else http[1]
            return Decision(endpoints=(worker.address,), ticket=make_ticket(), **decision)

        director.choose = choose
        options = ServerOptions(
            grpc_port=0, grpc_health_port=0, max_receive_bytes=2 * MAX_BODY_BYTES
        )
        server = PickerServer(director, PARSERS, options)
        ports = await server.start()
        stack.push_async_callback(server.stop)
        port = ports.grpc if through is None else await through(ports.grpc)
        plan = replace(
            plan or EnvoyPlan(health_interval_s=0.1),
            picker=("127.0.0.1", port),
            grpc_workers=[split(worker.address) for worker in engines],
            http_workers=[split(worker.address) for worker in http],
            buffered_bytes=buffered_bytes,
        )
        running = await stack.enter_async_context(envoy(plan))
        await running.wait_for_picker()
        client = await stack.enter_async_context(running.client())
        stub = await stack.enter_async_context(running.stub())
        yield Scene(director, server, http, engines, client, stub, running)
