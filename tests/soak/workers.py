"""Workers behind `weft serve --remote` end at random moments, and the gateway itself; a rolling update ends each.

Clients over HTTP speak to the gateway, and continue their streams with `x-weft-resume`. Those over gRPC have all
workers, as a fleet.
"""

import asyncio
import random
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment
from tests.doubles.secret_file import secret_file
from tests.model.adapters import write_adapter
from tests.ports import free_port
from tests.soak.api_servers import client_of, fleet_of
from tests.soak.kills import FLAGS, MODEL, Node, Plan, Run, run_plan
from tests.soak.streams import ADAPTER
from weft.model.open import open_model

WAYS = ("kill worker", "stop worker", "kill gateway")


@dataclass
class Worker(Node):
    """A server of its own: one with an engine, or the gateway."""

    http_port: int = field(default_factory=free_port)

    def start(self) -> None:
        command = [*WEFT, "serve", *self.argv, "--port", str(self.http_port)]
        nowhere = subprocess.DEVNULL
        environment = clean_environment()
        self.process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment)

    @property
    def http(self) -> str:
        """Address of its HTTP server."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def front(self) -> psutil.Process:
        """The process that runs now."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    async def until_ready(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(2 * PATIENCE_S), httpx2.AsyncClient() as client:
            while True:
                try:
                    answer = await client.get(f"{self.http}/health")
                except httpx2.TransportError:
                    answer = None
                if answer is not None and answer.status_code == 200:
                    return
                await asyncio.sleep(0.05)


class GatewayRun(Run):
    """Clients speak to the gateway, which chooses the worker."""

    def choose_rank(self) -> None:
        return None

    async def do(self, way: str, rank: int) -> None:
        """End a worker or the gateway, and return when the gateway sends requests to all workers."""
        worker = self.server if way == "kill gateway" else self.nodes[rank]
        assert isinstance(worker, Worker)
        number = signal.SIGTERM if way == "stop worker" else signal.SIGKILL
        await asyncio.to_thread(worker.end, number)
        worker.start()
        await worker.until_ready()
        await self.until_loads()

    async def until_loads(self) -> None:
        """Wait until the gateway knows the loads of all workers."""
        async with asyncio.timeout(PATIENCE_S):
            while len((await self.http.get("/load")).json()["loads"]) < self.num_ranks:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.05)


@asynccontextmanager
async def gateway_of(plan: Plan) -> AsyncIterator[GatewayRun]:
    """Workers, a gateway before them, and clients."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = write_adapter(scratch / "adapter", open_model(MODEL).spec)
        lora = ("--enable-lora", "--lora-modules", f"{ADAPTER}={adapter}")

        def start(*argv: str) -> Worker:
            worker = Worker(argv)
            worker.start()
            stack.callback(lambda: worker.end(signal.SIGKILL))
            return worker

        ports = [free_port() for _ in range(plan.nodes)]
        workers = [start(MODEL, *FLAGS, *lora, "--grpc-port", str(port)) for port in ports]
        for worker in workers:
            await worker.until_ready()
        targets = [f"127.0.0.1:{port}" for port in ports]
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        gateway = start(
            "--remote", ",".join(targets), *tools, "--resume-secret-file", secret_file()
        )
        await gateway.until_ready()
        http = await stack.enter_async_context(client_of(gateway.http))
        fleet = await stack.enter_async_context(fleet_of(*targets))
        nodes = dict(enumerate[Node](workers))
        dice = random.Random(plan.seed)
        run = GatewayRun(gateway, nodes, http, fleet, dice, plan.nodes)
        await run.until_loads()
        yield run


async def roll(plan: Plan) -> str:
    """Streams under ends of workers and of the gateway; returns the report."""
    async with gateway_of(plan) as run:
        return await run_plan(run, plan)
