"""Clients continue streams whose server is killed: `python -m tests.soak.resuming --place "API server"`.

The server is one of several API servers, the gateway before two workers, or one of two workers behind a proxy that
knows nothing of streams. Each is killed by SIGKILL at random moments, and is started again. Each answer must be that of
an undisturbed run.
"""

import argparse
import asyncio
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx2

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment, running
from tests.cli.test_api_servers import api_servers
from tests.doubles.secret_file import secret_file
from tests.ports import free_port
from tests.soak.kills import AT_ONCE, FLAGS, MODEL, Plan, Run
from tests.soak.resuming_client import ResumingTransport
from tests.soak.streams import KINDS, NUM_DISTINCT, RPC, kind_of
from tests.soak.workers import Worker
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

PLACES = ("API server", "gateway", "worker")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
NUMBERS = [
    number
    for number in range(NUM_DISTINCT)
    if KINDS[kind_of(number)][0] != RPC and kind_of(number) != "adapter"
]


@dataclass
class Gateway(Worker):
    """`weft serve --remote` at one port, whoever is its process."""

    def start(self) -> None:
        command = [*WEFT, "serve", *self.argv, *TOOLS, "--port", str(self.http_port)]
        nowhere = subprocess.DEVNULL
        environment = clean_environment()
        self.process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment)


@dataclass
class ResumingRun(Run):
    """Clients that continue their streams. `servers` are killed, and started again."""

    servers: list[Worker] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)  # servers that must be idle at the end
    transport: ResumingTransport = field(default_factory=ResumingTransport)

    def choose_rank(self) -> None:
        return None

    async def _send(self, place: int) -> None:
        """A stream of a server that has just started may have no position: then it is sent again."""
        num_off = self.transport.num_off
        try:
            await super()._send(place)
        except AssertionError:
            if self.transport.num_off == num_off:
                raise
            await super()._send(place)

    async def do(self, way: str, rank: int) -> None:
        """Kill a server, and return when it answers again."""
        if way == "API server":
            known = api_servers(self.server)
            self.dice.choice(known).kill()
            await until_new(self, {one.pid for one in known})
            return
        server = self.servers[rank]
        await asyncio.to_thread(server.end, signal.SIGKILL)
        server.start()
        await server.until_ready()

    async def check_idle(self) -> None:
        """Wait until no engine has a request, or holds a block."""
        async with asyncio.timeout(PATIENCE_S):
            for place in self.loads:
                while await self._is_busy(place):  # noqa: ASYNC110 - nobody is notified
                    await asyncio.sleep(0.05)

    async def _is_busy(self, place: str) -> bool:
        load = (await self.http.get(f"{place}/load")).json()
        return any((load["server_load"], *(one["num_held_blocks"] for one in load["loads"])))


async def until_new(run: ResumingRun, known: set[int]) -> None:
    """Wait until as many API servers as before answer."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            found = {one.pid for one in api_servers(run.server)}
            if len(found) == len(known) and found != known:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def proxy_of(ports: list[int], dice: random.Random) -> AsyncIterator[int]:
    """A proxy that sends each connection to any server that accepts one; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in dice.sample(ports, len(ports)):
            with suppress(OSError):
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
                pumps = [pump(reader, other_writer), pump(other_reader, writer)]
                await asyncio.gather(*pumps)
                return
        writer.close()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def run_of(place: str, plan: Plan) -> AsyncIterator[ResumingRun]:
    """The servers and the clients of a place."""
    secret = ("--resume-secret-file", secret_file())
    dice = random.Random(plan.seed)
    async with AsyncExitStack() as stack:
        server: Any = None
        servers: list[Worker] = []
        if place == "API server":
            flags = (*FLAGS, *secret, "--no-grpc", "--api-server-count", "2")
            server = stack.enter_context(running(MODEL, *flags))
            base = server.http
            loads = [base]
        else:
            ports = [free_port() for _ in range(2)]
            workers = [
                Worker(("--grpc-port", str(port), *secret), http_port=free_port()) for port in ports
            ]
            loads = [f"http://127.0.0.1:{worker.http_port}" for worker in workers]
            servers = workers
            remotes = [part for port in ports for part in ("--remote", f"127.0.0.1:{port}")]
            gateway = Gateway((*remotes, *secret), http_port=free_port())
            for one in workers:
                one.start()
                stack.callback(lambda one=one: one.end(signal.SIGKILL))
            for one in workers:
                await one.until_ready()
            if place == "gateway":
                servers = [gateway]
                gateway.start()
                stack.callback(lambda: gateway.end(signal.SIGKILL))
                await gateway.until_ready()
                base = f"http://127.0.0.1:{gateway.http_port}"
            else:
                http_ports = [worker.http_port for worker in workers]
                port = await stack.enter_async_context(proxy_of(http_ports, dice))
                base = f"http://127.0.0.1:{port}"
        transport = ResumingTransport()
        http = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=base, timeout=2 * PATIENCE_S, transport=transport)
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel("127.0.0.1:1"))
        nodes: dict[int, Any] = dict(enumerate(servers))
        run = ResumingRun(server, nodes, http, VllmEngineStub(channel), dice, max(1, len(servers)))
        run.numbers, run.servers, run.loads = NUMBERS, servers, loads
        run.transport = transport
        yield run


async def soak(place: str, plan: Plan) -> str:
    """Streams under kills of their servers; returns the report. Raises on a wrong answer, and if anything is left."""
    async with run_of(place, plan) as run:
        await run.learn()
        await run.send(AT_ONCE)  # what is made on first use is made now
        run.streams.clear()
        assert run.transport.num_continued == 0
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(run.disturb(plan))
            await run.send(plan.streams, beside=disturbing)
        await run.check_idle()
        assert len(run.ends) == plan.ends
        assert run.transport.num_continued > 0
        return f"{run.report()}\n{run.transport.num_continued} times a client continued a stream"


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", choices=PLACES, default="API server")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--ends", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(given.streams, given.ends, (given.place,), seed=given.seed)
    print(asyncio.run(soak(given.place, plan)))


if __name__ == "__main__":
    main()
