"""Engines and API servers of one server end at random moments: `python -m tests.soak.api_servers`.

The clients continue their streams: over HTTP with `x-weft-resume`, over gRPC by `Fleet`.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import psutil

from tests.busy import PATIENCE_S
from tests.cli.running import running
from tests.doubles.secret_file import secret_file
from tests.model.adapters import write_adapter
from tests.soak.kills import FLAGS, KEY, MODEL, Plan, Run, is_running, run_plan
from tests.soak.streams import ADAPTER
from weft.model.open import open_model
from weft.rpc.fleet import Fleet

WAYS = ("kill API server", "kill engine", "drain")
NUM_API_SERVERS = 2


class ApiServersRun(Run):
    """Clients have a connection to an API server for each stream over HTTP, and one for all over gRPC."""

    def choose_rank(self) -> None:
        return None

    async def do(self, way: str, rank: int) -> None:
        """End an engine or an API server, and return when the server has all of them."""
        if way != "kill API server":
            await super().do(way, rank)
            return
        victim = self.dice.choice(self._api_servers())
        victim.kill()
        async with asyncio.timeout(PATIENCE_S):
            while victim.is_running() or len(self._api_servers()) < NUM_API_SERVERS:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.02)

    def _api_servers(self) -> list[psutil.Process]:
        children = self.server.front.children()
        return [child for child in children if is_running(child, "weft.cli.serving.api_server")]


@asynccontextmanager
async def fleet_of(*targets: str) -> AsyncIterator[Fleet]:
    """A client of gRPC servers that continues the requests of those that end."""
    fleet = await Fleet.connect(targets)
    try:
        yield fleet
    finally:
        fleet.shutdown()
        await fleet.wait_closed()


@asynccontextmanager
async def client_of(base_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with a connection for each stream."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=base_url, timeout=PATIENCE_S, limits=limits) as http:
        yield http


@asynccontextmanager
async def api_servers_of(plan: Plan) -> AsyncIterator[ApiServersRun]:
    """A server with several API servers and engines, and clients."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = write_adapter(scratch / "adapter", open_model(MODEL).spec)
        flags = ("--api-server-count", str(NUM_API_SERVERS), "--data-parallel-size", str(plan.local),
                 "--resume-secret-file", secret_file(), "--control-api-key", KEY,
                 "--enable-lora", "--lora-modules", f"{ADAPTER}={adapter}")  # fmt: skip
        server = stack.enter_context(running(MODEL, *FLAGS, *flags))
        http = await stack.enter_async_context(client_of(server.http))
        fleet = await stack.enter_async_context(fleet_of(server.address))
        run = ApiServersRun(server, {}, http, fleet, random.Random(plan.seed), plan.local)
        run.note_engines()
        yield run


async def soak_api_servers(plan: Plan) -> str:
    """Streams under ends of API servers and engines; returns the report."""
    async with api_servers_of(plan) as run:
        return await run_plan(run, plan)
