"""Engines and nodes end at random moments under mixed streams.

Two engines belong to the server, further ones to nodes of their own. `--ways` chooses how they end: by SIGKILL of an
engine or of a node, by SIGTERM of a node, by `POST /drain`. Each answer must be that of an undisturbed run.
"""

import asyncio
import itertools
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import httpx2
import psutil

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment, running
from tests.doubles.secret_file import secret_file
from tests.model.adapters import write_adapter
from tests.ports import free_port
from tests.soak.footprint import Footprint
from tests.soak.resuming import NoPositionError
from tests.soak.streams import ADAPTER, NUM_DISTINCT, Stream, is_refused, kind_of
from weft.model.open import open_model
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.fleet import Fleet

MODEL = "embedded:tiny"
WAYS = ("kill engine", "kill node", "stop node", "drain")
AT_ONCE = 24
FLAGS = (
    *("--max-model-len", "1024", "--num-gpu-blocks-override", "512"),
    *("--num-threads", "2", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
KEY = "operator"
MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """At least so many streams while so many engines end; `local` engines belong to the server, each node has one.

    With `in_turn` the engines end one after the other, not at random.
    """

    streams: int = 2000
    ends: int = 20
    ways: Sequence[str] = WAYS
    local: int = 2
    nodes: int = 1
    in_turn: bool = False
    seed: int = 1


@dataclass
class Node:
    """A node with one engine, which is started again after its end."""

    argv: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*WEFT, "serve", MODEL, *FLAGS, "--headless", *self.argv]
        nowhere = subprocess.DEVNULL
        environment = clean_environment()
        self.process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and return when the node has ended."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)


@dataclass(frozen=True)
class End:
    """The end of an engine: how, and how long until it was back."""

    way: str
    rank: int
    away_s: float


class HasFront(Protocol):
    """A server."""

    @property
    def front(self) -> psutil.Process:
        """The process whose memory is looked at."""


@dataclass
class Run:
    """A server, its engines, the streams, and what was seen."""

    server: HasFront
    nodes: dict[int, Node]
    http: httpx2.AsyncClient
    rpc: VllmEngineStub | Fleet
    dice: random.Random
    num_ranks: int
    engines: dict[int, int] = field(default_factory=dict)  # pids of the server's engines
    expected: dict[int, Any] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    ends: list[End] = field(default_factory=list)
    num_refused: int = 0
    num_restarted: int = 0  # broken streams whose server had just started, and gave no position
    first_s: list[float] = field(default_factory=list)  # of long prompts that nothing has cached
    numbers: Sequence[int] = range(NUM_DISTINCT)  # the distinct requests

    # -- streams ------------------------------------------------------------------------------

    async def learn(self) -> None:
        """Run each distinct request once, undisturbed."""
        for number in self.numbers:
            began = time.monotonic()
            stream = Stream(number)
            await stream.run(self.http, self.rpc)
            self.expected[number] = stream.whole
            if kind_of(number) == "long prompt":
                self.first_s.append(time.monotonic() - began)

    async def send(self, num_streams: int, beside: asyncio.Task[None] | None = None) -> None:
        """Run so many streams, some at a time; more while a task beside them has not ended."""
        numbers = itertools.count()

        async def send_many() -> None:
            while (number := next(numbers)) < num_streams or not (beside is None or beside.done()):
                await asyncio.wait_for(self._send(number), 3 * PATIENCE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(send_many())

    def choose_rank(self) -> int | None:
        """The engine for a new request; None leaves the choice to the server."""
        return self.dice.choice(sorted(set(range(self.num_ranks)) - self.down))

    async def _send(self, place: int) -> None:
        number = self.numbers[place % len(self.numbers)]
        stream = Stream(number, self.choose_rank())
        while await self._is_refused(stream):
            self.num_refused += 1
            await asyncio.sleep(0.05)
            stream = Stream(number)  # any engine: the one that was named is down
        expected = self.expected[number]
        assert stream.whole == expected, (number, kind_of(number), stream.whole, expected)

    async def _is_refused(self, stream: Stream) -> bool:
        """Run a stream; True if nobody has taken it."""
        self.streams.append(stream)
        try:
            await stream.run(self.http, self.rpc)
        except Exception as error:
            if isinstance(error, NoPositionError):
                self.num_restarted += 1
            elif stream.num_events or not is_refused(error):
                kind = kind_of(stream.number)
                raise AssertionError(f"{stream.number}, {kind}: {error!r}") from error
            self.streams.remove(stream)
            return True
        return False

    # -- ends ---------------------------------------------------------------------------------

    async def disturb(self, plan: Plan) -> None:
        """End engines, spread over the streams. Each is back before the next one ends, and each stream has advanced: a
        request that is lost twice at the same place is given up, by design.
        """
        moments = sorted(self.dice.uniform(0.05, 0.9) * plan.streams for _ in range(plan.ends))
        for place, moment in enumerate(moments):
            await until_long(lambda moment=moment: len(self.streams) >= moment)
            await asyncio.sleep(self.dice.uniform(0.0, 0.3))  # the moment within an answer
            way = plan.ways[place % len(plan.ways)]
            able = sorted(self.nodes if "node" in way else range(self.num_ranks))
            rank = able[place % len(able)] if plan.in_turn else self.dice.choice(able)
            await self._end(way, rank)

    def _open(self) -> list[Stream]:
        return [stream for stream in self.streams if not stream.is_over]

    async def _end(self, way: str, rank: int) -> None:
        self.down.add(rank)
        seen = {stream: stream.num_events for stream in self._open()}
        for stream in seen:
            if stream.rank in (rank, None):
                stream.cut()
        began = time.monotonic()
        await self.do(way, rank)
        self.ends.append(End(way, rank, time.monotonic() - began))
        await until_long(
            lambda: all(stream.is_over or stream.num_events > num for stream, num in seen.items())
        )
        self.down.discard(rank)

    async def do(self, way: str, rank: int) -> None:
        """End an engine, and return when the server has all of its engines."""
        node = self.nodes.get(rank)
        if way == "drain":
            await self._post("/drain", rank)
            await self._post("/undrain", rank)
            return
        if node is not None and way != "kill engine":
            number = signal.SIGKILL if way == "kill node" else signal.SIGTERM
            await asyncio.to_thread(node.end, number)
            await self.until_health("degraded")
            node.start()
        else:
            if node is None:
                pid = self.engines[rank]
            else:
                assert node.process is not None
                [engine] = engines_of(psutil.Process(node.process.pid))
                pid = engine.pid
            psutil.Process(pid).kill()
            await self.until_health("degraded")
        await self.until_health("")
        self.note_engines()

    async def _post(self, path: str, rank: int) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"data_parallel_ranks": [rank]}
        answer = await self.http.post(path, json=body, headers=headers)
        answer.raise_for_status()

    async def until_health(self, body: str) -> None:
        """Wait for a state that nobody is notified of."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while (await self.http.get("/health")).text.strip() != body:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.02)

    def note_engines(self) -> None:
        """Learn the processes of the server's engines: a new one has the rank of the one that ended."""
        found = {engine.pid for engine in engines_of(self.server.front)}
        free = [r for r in range(self.num_ranks) if r not in self.nodes]
        known = {rank: pid for rank, pid in self.engines.items() if pid in found}
        fresh = sorted(found - set(known.values()))
        missing = [rank for rank in free if rank not in known]
        self.engines = {**known, **dict(zip(missing, fresh, strict=True))}

    # -- what is left -------------------------------------------------------------------------

    async def check_idle(self) -> None:
        """Wait until no request is open and no block is held."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                load = (await self.http.get("/load")).json()
                held = [one["num_held_blocks"] for one in load["loads"]]
                if not any((load["server_load"], *held)) and len(held) == self.num_ranks:
                    return
                await asyncio.sleep(0.02)

    def report(self) -> str:
        """The figures, as lines."""
        cut = [stream.longest_s for stream in self.streams if stream.was_cut]
        others = [stream.longest_s for stream in self.streams if not stream.was_cut]
        slowest = sorted(
            (stream for stream in self.streams if stream.was_cut), key=lambda s: -s.longest_s
        )
        named = ", ".join(f"{kind_of(s.number)} {s.longest_s:.3f} s" for s in slowest[:3])
        ways = Counter(end.way for end in self.ends)
        lines = [
            f"{len(self.streams)} streams; ends: {dict(ways)}",
            f"{self.num_refused} refused and sent again, {self.num_restarted} of them without a position",
            f"longest pause of a stream that was cut: {_spread(cut)}",
            f"the slowest of these: {named}",
            f"longest pause of other streams: {_spread(others)}",
            f"long prompt alone, 860 tokens in all: {_spread(self.first_s)}",
        ]
        for way in ways:
            away = [end.away_s for end in self.ends if end.way == way]
            lines.append(f"engine away, {way}: {_spread(away)}")
        return "\n".join(lines)


def engines_of(process: psutil.Process) -> list[psutil.Process]:
    """The engines that a process has started."""
    return [one for one in process.children() if is_running(one, "weft.engine.process")]


def is_running(process: psutil.Process, module: str) -> bool:
    """True if the process runs this module. One that has ended, and that nobody has waited for, runs none."""
    try:
        return module in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    median = statistics.median(ordered)
    return f"{len(ordered)}, median {median:.3f} s, p99 {p99:.3f} s, longest {ordered[-1]:.3f} s"


async def until_long(is_so: Any) -> None:
    """`until`, for what may take as long as many streams."""
    while not is_so():  # noqa: ASYNC110 - nobody is notified
        await asyncio.sleep(0.01)


@asynccontextmanager
async def run_of(plan: Plan) -> AsyncIterator[Run]:
    """A head with engines, nodes with one engine each, and clients."""
    num_ranks, port = plan.local + plan.nodes, free_port()
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = write_adapter(scratch / "adapter", open_model(MODEL).spec)
        link = ("--data-parallel-size", str(num_ranks), "--data-parallel-rpc-port", str(port),
                "--data-parallel-secret-file", secret_file(), "--enable-lora")  # fmt: skip
        nodes = {}
        for rank in range(plan.local, num_ranks):
            place = ("--data-parallel-size-local", "1", "--data-parallel-start-rank", str(rank))
            node = nodes[rank] = Node((*link, *place))
            node.start()
            stack.callback(lambda node=node: node.end(signal.SIGKILL))
        local = ("--data-parallel-size-local", str(plan.local))
        flags = (*local, "--lora-modules", f"{ADAPTER}={adapter}", "--control-api-key", KEY)
        server = stack.enter_context(running(MODEL, *FLAGS, *link, *flags))
        limits = httpx2.Limits(max_connections=None)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S, limits=limits)
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
        dice = random.Random(plan.seed)
        run = Run(server, nodes, http, VllmEngineStub(channel), dice, num_ranks)
        run.note_engines()
        yield run


async def soak(plan: Plan) -> str:
    """Streams under ends of engines; returns the report. Raises on a wrong answer, and if anything is left."""
    async with run_of(plan) as run:
        return await run_plan(run, plan)


async def run_plan(run: Run, plan: Plan) -> str:
    """`soak` with a server that is there already."""
    await run.learn()
    await run.send(AT_ONCE)  # what is made on first use is made now
    run.streams.clear()
    await run.check_idle()
    before = Footprint.of(run.server.front)
    async with asyncio.TaskGroup() as group:
        disturbing = group.create_task(run.disturb(plan))
        await run.send(plan.streams, beside=disturbing)
    await run.check_idle()
    after = Footprint.of(run.server.front)
    assert len(run.ends) == plan.ends
    assert any(stream.was_cut for stream in run.streams)
    assert after.num_threads <= before.num_threads + 8
    assert after.num_fds <= before.num_fds + AT_ONCE
    grown = (after.rss_bytes - before.rss_bytes) / MIB
    assert grown < 64, f"the server has grown by {grown:.0f} MiB"
    memory = f"memory of the server: {before.rss_bytes / MIB:.0f} MiB, and {grown:+.1f} MiB"
    return f"{run.report()}\n{memory}"
