"""A rolling update of workers behind `weft serve --remote`: `python -m tests.soak.workers`.

Each worker is a server of its own. It gets SIGTERM under load, or SIGKILL, and is started again.
"""

import argparse
import asyncio
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import httpx2

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment, running
from tests.ports import free_port
from tests.soak.kills import FLAGS, MODEL, Node, Plan, Run, run_plan
from tests.soak.streams import KINDS, NUM_DISTINCT, RPC, kind_of
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

WAYS = ("stop node", "kill node")


@dataclass
class Worker(Node):
    """A server with an engine of its own."""

    http_port: int = 0

    def start(self) -> None:
        command = [*WEFT, "serve", MODEL, *FLAGS, *self.argv, "--port", str(self.http_port)]
        nowhere = subprocess.DEVNULL
        environment = clean_environment()
        self.process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment)

    async def until_ready(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(2 * PATIENCE_S), httpx2.AsyncClient() as client:
            while True:
                try:
                    answer = await client.get(f"http://127.0.0.1:{self.http_port}/health")
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
        """End a worker, and return when the gateway sends requests to it again."""
        worker = self.nodes[rank]
        assert isinstance(worker, Worker)
        number = signal.SIGKILL if way == "kill node" else signal.SIGTERM
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
    """Workers, a gateway before them, and clients of the gateway."""
    async with AsyncExitStack() as stack:
        targets, workers = [], {}
        for number in range(plan.nodes):
            port = free_port()
            worker = Worker(("--grpc-port", str(port)), http_port=free_port())
            worker.start()
            stack.callback(lambda worker=worker: worker.end(signal.SIGKILL))
            workers[number] = worker
            targets.append(f"127.0.0.1:{port}")
        for worker in workers.values():
            await worker.until_ready()
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        remotes = [part for target in targets for part in ("--remote", target)]
        server = stack.enter_context(running(*remotes, *tools))
        limits = httpx2.Limits(max_connections=None)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S, limits=limits)
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel("127.0.0.1:1"))
        numbers = [
            number
            for number in range(NUM_DISTINCT)
            if KINDS[kind_of(number)][0] != RPC and kind_of(number) != "adapter"
        ]
        dice = random.Random(plan.seed)
        run = GatewayRun(server, {**workers}, http, VllmEngineStub(channel), dice, plan.nodes)
        run.numbers = numbers
        await run.until_loads()
        yield run


async def roll(plan: Plan) -> str:
    """The update; returns the report."""
    async with gateway_of(plan) as run:
        return await run_plan(run, plan)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--ends", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["stop node"])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(given.streams, given.ends, given.ways, 0, given.workers, True, given.seed)
    print(asyncio.run(roll(plan)))


if __name__ == "__main__":
    main()
