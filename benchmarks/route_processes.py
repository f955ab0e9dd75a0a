"""What `route.py` starts and measures: processes, closed loops of requests, CPU by process."""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles

import psutil

from weft.cli.up.binary import find_envoy
from weft.cli.up.envoy import EnvoyPlan, envoy_config

WEFT = (sys.executable, "-m", "weft.cli.main")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement."""

    num_requests: int
    seconds: float
    cpu_ms: dict[str, float]  # per request, by process
    latencies_ms: list[float]

    @property
    def per_second(self) -> float:
        """Requests a second."""
        return self.num_requests / self.seconds

    def percentile(self, percent: int) -> float:
        """Of the latencies."""
        return quantiles(self.latencies_ms, n=100)[percent - 1]


@asynccontextmanager
async def process(*argv: str, ready: str) -> AsyncIterator[tuple[int, list[str]]]:
    """A child until its line `ready`: its id and what it printed."""
    child = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, env=os.environ | ONE_THREAD
    )
    assert child.stdout is not None
    lines: list[str] = []
    try:
        while not (lines and lines[-1].startswith(ready)):
            line = (await child.stdout.readline()).decode()
            if not line:
                raise SystemExit(f"{' '.join(argv)} did not start")
            lines.append(line)
        yield child.pid, lines
    finally:
        child.kill()
        await child.wait()


@asynccontextmanager
async def picker(endpoints: Sequence[str], *argv: str) -> AsyncIterator[tuple[int, str]]:
    """`weft epp`: its process id and its address."""
    flags = [f"--endpoint={endpoint}" for endpoint in endpoints]
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--log-level=error")
    async with process(*WEFT, "epp", *ports, *flags, *argv, ready="  metrics") as (pid, lines):
        address = next(line.split()[1] for line in lines if line.startswith("  ext_proc"))
        await asyncio.sleep(1.5)  # the first loads are in
        yield pid, address


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[str]]:
    """One process that is `count` model servers, each on an address of its own."""
    argv = (sys.executable, str(Path(__file__).parent / "route_servers.py"))
    async with process(*argv, ready="port ") as (_, lines):
        port = int(lines[-1].split()[1])
        yield [f"127.1.{number // 250}.{number % 250 + 1}:{port}" for number in range(count)]


@asynccontextmanager
async def envoy(plan: EnvoyPlan) -> AsyncIterator[tuple[int, int]]:
    """A real Envoy: its process id and its port."""
    port, admin = _free_port(), _free_port()
    plan = replace(plan, listen=("127.0.0.1", port), admin=("127.0.0.1", admin))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "envoy.json"
        path.write_text(json.dumps(envoy_config(plan)))
        child = await asyncio.create_subprocess_exec(
            str(find_envoy(None)), "-c", str(path), "--disable-hot-restart", "--concurrency", "1",
            "--log-level", "error",
        )  # fmt: skip
        try:
            await asyncio.sleep(2.5)  # listening, and one round of health checks
            yield child.pid, port
        finally:
            child.kill()
            await child.wait()


async def measure(
    one: Callable[[int], Awaitable[None]],
    *,
    count: int,
    lanes: int,
    pids: dict[str, int],
    warm: int | None = None,
) -> Result:
    """`count` requests in `lanes` closed loops, after `warm` of them that do not count."""
    warm = max(lanes, count // 10) if warm is None else warm
    await _run(one, range(warm), lanes)
    before = {name: _cpu_s(pid) for name, pid in pids.items()}
    started = time.perf_counter()
    latencies = await _run(one, range(warm, warm + count), lanes)
    seconds = time.perf_counter() - started
    cpu_ms = {name: (_cpu_s(pid) - before[name]) / count * 1000 for name, pid in pids.items()}
    return Result(count, seconds, cpu_ms, latencies)


async def _run(
    one: Callable[[int], Awaitable[None]], numbers: Iterable[int], lanes: int
) -> list[float]:
    pending = iter(numbers)
    latencies: list[float] = []

    async def lane() -> None:
        for number in pending:
            started = time.perf_counter()
            await one(number)
            latencies.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return latencies


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
