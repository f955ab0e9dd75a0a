"""Rollouts under streams: clients that stream without pause, through pickers as processes and gateways that are
replaced, from workers that are replaced too.
"""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.busy import PATIENCE_S, until
from tests.deploy.manifests import KUBERNETES
from tests.e2e.envoys import Running, envoy
from tests.e2e.rolling import Cluster, PickerProcess, leader_of
from tests.e2e.scenes import STREAMED
from tests.e2e.workers import HttpWorker, write_chunk
from tests.ports import free_port
from weft.cli.up.envoy import EnvoyPlan

NUM_STREAMS = 50
NUM_PODS = 3
EVENT_S = 0.2
DRAIN_SCRIPT = KUBERNETES / "fleet" / "drain.sh"
PICKER_FLAGS = ("--track-responses", "--drain-timeout=1s", "--metrics-endpoint-auth=false")
USAGE = b'data: {"model":"m","usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'
END = b"data: [DONE]\n\n"


def _event(number: int) -> bytes:
    return b'data: {"model":"m","n":%d}\n\n' % number


@dataclass(slots=True)
class PacedWorker(HttpWorker):
    """Streams events at a steady pace, and reports its running requests, also while it ends."""

    num_running: int = 0

    def __post_init__(self) -> None:
        self.pages = {"/health": (200, b"ok")}
        self.report()

    def report(self) -> None:
        text = (
            f"vllm:num_requests_waiting 0\nvllm:num_requests_running {self.num_running}\n"
            "vllm:kv_cache_usage_perc 0\n"
        )
        self.pages["/metrics"] = (200, text.encode())

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        self.num_running += 1
        self.report()
        try:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            began = time.monotonic()
            for number in range(self.num_events):
                write_chunk(writer, _event(number))
                await writer.drain()
                # By the clock, so that a busy machine makes no stream longer.
                await asyncio.sleep(began + (number + 1) * EVENT_S - time.monotonic())
            await self.may_end.wait()
            write_chunk(writer, USAGE)
            write_chunk(writer, END)
            writer.write(b"0\r\n\r\n")
        finally:
            self.num_running -= 1
            self.report()


@dataclass(slots=True)
class Pod:
    """A worker at its own address. It ends as a server does that drains: once no request is open."""

    name: str
    worker: PacedWorker
    server: asyncio.Server

    def stop(self) -> None:
        self.server.close()


@dataclass
class Rollout:
    """All parts, and the steps that replace them."""

    cluster: Cluster
    pickers: list[PickerProcess]
    plan: EnvoyPlan
    port: int  # of every pod
    num_events: int
    scratch: AsyncExitStack
    gateways: list[Running] = field(default_factory=list)
    # Of the gateway that is in service. A client for each stream would take longer to make than all the rest.
    client: httpx2.AsyncClient = field(init=False)
    pods: dict[str, Pod] = field(default_factory=dict)
    streams: set[asyncio.Task[None]] = field(default_factory=set)
    num_whole: int = 0
    cut: list[str] = field(default_factory=list)
    is_over: bool = False

    @property
    def patience_s(self) -> float:
        """How long a part may take to end its streams."""
        return PATIENCE_S + self.num_events * EVENT_S

    @property
    def whole(self) -> bytes:
        """The text of a stream that nobody has cut."""
        return b"".join(map(_event, range(self.num_events))) + USAGE + END

    @property
    def num_running(self) -> dict[str, int]:
        """Number of running streams by pod."""
        return {name: pod.worker.num_running for name, pod in self.pods.items()}

    async def stream_on(self) -> None:
        """A client that begins the next stream when one ends, at the gateway that is in service then."""
        while not self.is_over:
            text = b""
            try:
                path = "/v1/chat/completions"
                async with self.client.stream("POST", path, content=STREAMED) as answer:
                    async for piece in answer.aiter_bytes():
                        text += piece
            except httpx2.HTTPError as error:
                text += repr(error).encode()
            if text == self.whole:
                self.num_whole += 1
            else:
                self.cut.append(text.decode())

    async def add_gateway(self) -> None:
        more = [("127.0.0.1", picker.port) for picker in self.pickers[1:]]
        gateway = await self.scratch.enter_async_context(envoy(self.plan, more_pickers=more))
        await gateway.wait_for_picker()
        self.gateways.append(gateway)
        unlimited = httpx2.Limits(max_connections=None)
        self.client = await self.scratch.enter_async_context(gateway.client(limits=unlimited))

    async def replace_gateway(self) -> None:
        """A second gateway serves, and then the first one drains, as its preStop hook says, and is stopped."""
        (old,) = self.gateways
        await self.add_gateway()
        words = (str(DRAIN_SCRIPT), str(int(self.patience_s)), str(old.admin_port))
        hook = await asyncio.create_subprocess_exec("bash", *words)
        assert await hook.wait() == 0
        old.stop()
        self.gateways.remove(old)

    async def replace_pickers(self) -> None:
        """Each picker gets SIGTERM and starts again, the leader last. Its streams take longer than it may drain."""
        leader = await leader_of(self.pickers)
        for picker in sorted(self.pickers, key=lambda each: each is leader):
            await picker.end()
            picker.start()
            await leader_of(self.pickers)

    async def add_pod(self, name: str, ip: str) -> None:
        worker = PacedWorker(f"{ip}:{self.port}", num_events=self.num_events)
        worker.may_answer.set()
        worker.may_end.set()
        server = await asyncio.start_server(worker.serve, ip, self.port)
        self.pods[name] = Pod(name, worker, server)
        self.scratch.callback(server.close)
        await self.cluster.put_pod(name, ip)

    async def replace_pod(self, name: str, new: str, ip: str) -> None:
        """A new pod serves, and then the old one ends: it serves on until no gateway sends to it and none is open."""
        await self.add_pod(new, ip)
        await self.cluster.end_pod(name)
        pod = self.pods[name]
        pod.worker.pages["/health"] = (503, b"ending")
        address = f"{pod.worker.address}::health_flags::/failed_active_hc".encode()
        async with asyncio.timeout(PATIENCE_S):
            for gateway in self.gateways:
                await gateway.wait_for("/clusters?filter=^workers_http$", address)
        async with asyncio.timeout(self.patience_s):
            while pod.worker.num_running:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.05)
        pod.stop()
        del self.pods[name]
        await self.cluster.delete_pod(name)

    async def replace_pods(self) -> None:
        await asyncio.gather(
            *(
                self.replace_pod(f"old-{n}", f"new-{n}", _address(2, n))
                for n in range(1, NUM_PODS + 1)
            )
        )

    async def counted(self, picker: PickerProcess) -> dict[str, int]:
        """Number of running requests by pod as the picker knows it after its next poll of every pod."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                asked = time.monotonic()
                rows = (await picker.read("/debug/plugins/state")).json()["rows"]
                if all((row["load_age_s"] or math.inf) < asked - began for row in rows):
                    break
        counts = {row["address"]: row["load"]["num_running"] for row in rows}
        return {name: counts[pod.worker.address] for name, pod in self.pods.items()}

    async def num_followed(self, picker: PickerProcess) -> int:
        """Number of responses that the picker follows."""
        return (await picker.read("/debug/plugins/state")).json()["followed_requests"]

    async def begin(self) -> None:
        """Starts clients, and returns when each client has a stream."""
        for _ in range(NUM_STREAMS):
            self.streams.add(asyncio.create_task(self.stream_on()))
        await until(lambda: sum(self.num_running.values()) == len(self.streams))

    def hold(self) -> None:
        """Has no stream end until the end of the rollout."""
        for pod in self.pods.values():
            pod.worker.may_end.clear()

    async def end(self) -> None:
        """Lets the open streams end, and begins no more."""
        self.is_over = True
        for pod in self.pods.values():
            pod.worker.may_end.set()
        await asyncio.gather(*self.streams)


def _address(generation: int, number: int) -> str:
    return f"127.0.{generation}.{number}"


@asynccontextmanager
async def rollout_of(
    cluster: Cluster, *flags: str, stream_s: float, buffered_bytes: int | None = None
) -> AsyncIterator[Rollout]:
    """Three pods, two pickers of which one leads, and a gateway."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pickers = [
            PickerProcess(cluster, directory / f"picker-{n}.log", *PICKER_FLAGS, *flags)
            for n in (1, 2)
        ]
        port = free_port()
        every = [_address(generation, n) for generation in (1, 2) for n in range(1, NUM_PODS + 1)]
        plan = EnvoyPlan(
            picker=("127.0.0.1", pickers[0].port),
            http_workers=[(address, port) for address in every],
            health_interval_s=0.2,
            buffered_bytes=buffered_bytes,
        )
        num_events = int(stream_s / EVENT_S)
        rollout = Rollout(cluster, pickers, plan, port, num_events, stack)
        await cluster.put_pool(port)
        for number in range(1, NUM_PODS + 1):
            await rollout.add_pod(f"old-{number}", _address(1, number))
        for picker in pickers:
            picker.start()
            stack.callback(picker.kill)
        await leader_of(pickers)
        await rollout.add_gateway()
        await rollout.begin()
        try:
            yield rollout
        finally:
            for task in rollout.streams:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*rollout.streams)
