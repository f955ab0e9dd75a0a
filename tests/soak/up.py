"""Workers of `weft up` end at random moments, behind its picker and its Envoy.

The clients continue their streams at another worker: over HTTP with `x-weft-resume`, over gRPC by `Fleet`.
"""

import asyncio
import random
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import psutil

from tests.busy import PATIENCE_S
from tests.cli.test_epp_up import Up, line_with, up
from tests.doubles.secret_file import secret_file
from tests.model.adapters import write_adapter
from tests.soak.api_servers import client_of, fleet_of
from tests.soak.kills import FLAGS, MODEL, Plan, Run, run_plan
from tests.soak.streams import ADAPTER
from weft.model.open import open_model

WAYS = ("kill worker", "stop worker")


class Stack:
    """`weft up`, as a server."""

    def __init__(self, stack: Up) -> None:
        self.up = stack
        self.front = psutil.Process(stack.process.pid)

    def workers(self) -> list[psutil.Process]:
        """The workers that run."""
        return [child for child in self.front.children() if "serve" in child.cmdline()]


class UpRun(Run):
    """Envoy and the picker choose the worker of each stream."""

    server: Stack

    def choose_rank(self) -> None:
        return None

    async def do(self, way: str, rank: int) -> None:
        """End a worker, and return when `weft up` has started it again."""
        victim = self.dice.choice(self.server.workers())
        victim.send_signal(signal.SIGKILL if way == "kill worker" else signal.SIGTERM)
        await asyncio.to_thread(line_with, self.server.up, "is back")

    async def check_idle(self) -> None:
        """Wait until no worker has an open request or holds a block."""
        ports = [port for worker in self.server.workers() for port in _ports(worker)]
        async with asyncio.timeout(PATIENCE_S):
            while any([await _is_busy(port) for port in ports]):  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.02)


def _ports(worker: psutil.Process) -> set[int]:
    return {at.laddr.port for at in worker.net_connections("tcp") if at.status == "LISTEN"}


async def _is_busy(port: int) -> bool:
    """Whether the server at a port has open requests or holds blocks; gRPC servers are not asked."""
    async with httpx2.AsyncClient() as client:
        try:
            load = (await client.get(f"http://127.0.0.1:{port}/load")).json()
        except httpx2.TransportError:
            return False
    return any((load["server_load"], *(one["num_held_blocks"] for one in load["loads"])))


@asynccontextmanager
async def up_of(plan: Plan) -> AsyncIterator[UpRun]:
    """`weft up` with as many workers as the plan has nodes, and clients of its address."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = write_adapter(scratch / "adapter", open_model(MODEL).spec)
        lora = ("--enable-lora", "--lora-modules", f"{ADAPTER}={adapter}")
        flags = (*FLAGS, *lora, "--resume-secret-file", secret_file())
        argv = (f"--workers={plan.nodes}", f"--worker-args={shlex.join(flags)}")
        server = Stack(stack.enter_context(up(*argv, model=MODEL)))
        http = await stack.enter_async_context(client_of(f"http://{server.up.address}"))
        fleet = await stack.enter_async_context(fleet_of(server.up.address))
        yield UpRun(server, {}, http, fleet, random.Random(plan.seed), plan.nodes)


async def soak_up(plan: Plan) -> str:
    """Streams under ends of workers; returns the report."""
    async with up_of(plan) as run:
        return await run_plan(run, plan)
