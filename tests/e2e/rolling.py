"""A rolling update: pods that serve, pickers as processes, a gateway, clients that never pause, and what went wrong."""

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx2

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment
from tests.e2e.envoys import Running, envoy
from tests.e2e.workers import FakePod
from tests.ports import free_port
from weft.cli.up.envoy import EnvoyPlan
from weft.core.headers import DESTINATION

NUM_PODS = 20
RATE = 50  # requests a second
GRACE_S = 12.0  # how long a pod serves on once it is to end; Kubernetes gives 30
STEP_S = 1.0
LEADER_ELECTION = "--ha-enable-leader-election"
OUTAGE_S = 2.0
CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'


class Cluster(Protocol):
    """An API server with an InferencePool `llm` in the namespace `ns`."""

    environment: dict[str, str]  # by which pickers find it

    async def put_pool(self, port: int) -> None: ...
    async def put_pod(self, name: str, ip: str) -> None: ...
    async def end_pod(self, name: str) -> None: ...
    async def delete_pod(self, name: str) -> None: ...
    async def stop(self) -> None: ...
    async def start(self) -> None: ...


class PickerProcess:
    """`weft epp` at ports that stay its own, so that it can come back."""

    def __init__(self, cluster: Cluster, log: Path, *flags: str) -> None:
        self.port, self._health, self._metrics = (free_port() for _ in range(3))
        self._flags = flags
        self._cluster = cluster
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*WEFT, "epp", "--pool-name=llm", "--pool-namespace=ns", f"--grpc-port={self.port}",
                 f"--grpc-health-port={self._health}", f"--metrics-port={self._metrics}", *self._flags],
                stdout=log, stderr=log, env=clean_environment(**self._cluster.environment),
            )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    async def end(self) -> None:
        """As Kubernetes ends a pod: a signal, and time to drain."""
        assert self._process is not None
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, PATIENCE_S)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def get(self, path: str, token: str = "") -> int:
        """The status of a page; 0 where nobody answers."""
        with suppress(httpx2.TransportError):
            return (await self.read(path, token)).status_code
        return 0

    async def read(self, path: str, token: str = "") -> httpx2.Response:
        """A page of its metrics port."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            return await client.get(f"http://127.0.0.1:{self._metrics}{path}", headers=headers)


async def leader_of(pickers: list[PickerProcess]) -> PickerProcess:
    """Who is ready, once somebody is."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for picker in pickers:
                if await picker.get("/readyz") == 200:
                    return picker
            await asyncio.sleep(0.05)


@dataclass(slots=True)
class Sent:
    """A request of the clients'."""

    started: float
    status: int = 0
    said: str = ""


@dataclass
class Clients:
    """They send at their rate, however long answers take."""

    client: httpx2.AsyncClient
    sent: dict[int, Sent] = field(default_factory=dict)

    async def run(self) -> None:
        """Until it is cancelled; what is under way then is waited for."""
        began = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = asyncio.create_task(self.send())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                next_at = began + len(self.sent) / RATE
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        finally:
            await asyncio.gather(*tasks)

    async def send(self) -> None:
        """One request."""
        number = len(self.sent)
        sent = self.sent[number] = Sent(time.monotonic())
        headers = {"x-number": str(number)}
        try:
            answer = await self.client.post("/v1/chat/completions", content=CHAT, headers=headers)
            sent.status, sent.said = answer.status_code, answer.text
        except httpx2.HTTPError as error:
            sent.said = repr(error)


@dataclass
class Update:
    """Everything there is, and the steps of the update."""

    cluster: Cluster
    pickers: list[PickerProcess]
    envoy: Running
    clients: Clients
    port: int
    pods: dict[str, FakePod] = field(default_factory=dict)
    ends: list[asyncio.Task[None]] = field(default_factory=list)
    is_up: asyncio.Event = field(default_factory=asyncio.Event)  # the API server

    async def add(self, name: str, ip: str) -> None:
        pod = self.pods[name] = FakePod(name, ip, self.port)
        await pod.start()
        await self.cluster.put_pod(name, ip)

    async def end(self, name: str) -> None:
        """Kubernetes says so, and the pod serves on for a while."""
        await self.cluster.end_pod(name)
        self.pods[name].drain()
        self.ends.append(asyncio.create_task(self._end(name)))

    async def _end(self, name: str) -> None:
        await asyncio.sleep(GRACE_S)
        self.pods[name].stop()
        await self.is_up.wait()
        await self.cluster.delete_pod(name)

    async def lose_api_server(self) -> None:
        self.is_up.clear()
        await self.cluster.stop()
        await asyncio.sleep(OUTAGE_S)
        await self.cluster.start()
        self.is_up.set()

    async def kill_leader(self) -> None:
        """It is gone without a word, and comes back as one that stands by."""
        leader = await leader_of(self.pickers)
        leader.kill()
        async with asyncio.timeout(PATIENCE_S):
            unhealthy = f"127.0.0.1:{leader.port}::health_flags::/failed".encode()
            await self.envoy.wait_for("/clusters?filter=^picker$", unhealthy)
        leader.start()

    async def end_leader(self) -> None:
        """It drains, and another leads."""
        leader = await leader_of(self.pickers)
        await leader.end()
        leader.start()

    def routed(self) -> dict[int, tuple[FakePod, str]]:
        """By number of a request: who served it, and whom the picker named, or nobody."""
        return {
            int(seen.headers["x-number"]): (pod, seen.headers.get(DESTINATION, ""))
            for pod in self.pods.values()
            for seen in pod.worker.seen
        }

    def wrong(self) -> list[str]:
        """Requests that were lost, and those that were sent to a pod that had gone."""
        routed = self.routed()
        gone_at = {pod.worker.address: pod.gone_at for pod in self.pods.values()}
        found = [
            f"{number}: {sent.status} {sent.said}"
            for number, sent in self.clients.sent.items()
            if sent.status != 200 or number not in routed
        ]
        return found + [
            f"{number}: sent to {picked}, which had gone"
            for number, (_, picked) in routed.items()
            if picked and gone_at[picked] <= self.clients.sent[number].started
        ]


def _address(generation: int, number: int) -> str:
    return f"127.0.{generation}.{number}"


@asynccontextmanager
async def update_of(cluster: Cluster) -> AsyncIterator[Update]:
    """Twenty pods that serve, two pickers, of which one leads, and clients that send without pause."""
    async with AsyncExitStack() as stack:
        port = free_port()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pickers = [
            PickerProcess(cluster, scratch / f"picker-{number}.log", LEADER_ELECTION)
            for number in (1, 2)
        ]
        every = [_address(generation, n) for generation in (1, 2) for n in range(1, NUM_PODS + 1)]
        plan = EnvoyPlan(
            picker=("127.0.0.1", pickers[0].port),
            http_workers=[(address, port) for address in every],
            health_interval_s=0.5,
            buffered_bytes=2**20,
        )
        running = await stack.enter_async_context(
            envoy(plan, more_pickers=[("127.0.0.1", pickers[1].port)])
        )
        unlimited = httpx2.Limits(max_connections=None)
        client = await stack.enter_async_context(running.client(limits=unlimited))
        update = Update(cluster, pickers, running, Clients(client), port)
        update.is_up.set()
        await cluster.put_pool(port)
        for number in range(1, NUM_PODS + 1):
            await update.add(f"old-{number}", _address(1, number))
        for picker in pickers:
            picker.start()
            stack.callback(picker.kill)
        await leader_of(pickers)
        await running.wait_for_picker()
        sending = asyncio.create_task(update.clients.run())
        try:
            yield update
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            for pod in update.pods.values():
                pod.stop()


async def roll(update: Update) -> None:
    """One pod after another; the API server is killed twice, the leader once, and one more is made to end."""
    meanwhile = {
        3: update.kill_leader,
        8: update.lose_api_server,
        14: update.lose_api_server,
        18: update.end_leader,
    }
    for number in range(1, NUM_PODS + 1):
        await update.add(f"new-{number}", _address(2, number))
        await update.end(f"old-{number}")
        if number in meanwhile:
            await meanwhile[number]()
        await asyncio.sleep(STEP_S)
    await asyncio.gather(*update.ends)
