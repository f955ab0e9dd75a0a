"""What serving costs: the engine alone, over gRPC and over HTTP, by number of streaming clients.

`python benchmarks/serve.py`; README.md says how to read the table.
"""

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_load import Job, Report, Seen, drive, quantile
from weft.core.config.engine_options import EngineOptions
from weft.core.values.prompts import TokensPrompt
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.clients.process_client import ProcessClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model

# One whose steps are nearly free, so that what is in front of it shows; one of SmolLM2-135M's shape.
MODELS = {
    "free": "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=400",
    "paced": "embedded:echo?itl_ms=20",
    "smollm2-135m": "embedded:random?layers=30&hidden=576&heads=9&kv_heads=3&head_dim=64"
    "&intermediate=1536&vocab=49152&dtype=bfloat16",
}
WAYS = {
    "gRPC": "grpc",
    "HTTP, completions": "/v1/completions",
    "HTTP, chat": "/v1/chat/completions",
}
MAX_MODEL_LEN = 2048
NUM_BLOCKS = 8192


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `front_ms` is processor time a 1,000 tokens, None where there is no front end."""

    way: str
    num_clients: int
    report: Report
    front_ms: float | None

    def __str__(self) -> str:
        report = self.report
        p50, p99 = (quantile(report.firsts_s, share) for share in (0.5, 0.99))
        front = "" if self.front_ms is None else f"{self.front_ms:.1f}"
        return (
            f"| {self.num_clients} | {self.way} | {report.num_tokens / report.seconds:.0f} "
            f"| {p50 * 1e3:.1f} | {p99 * 1e3:.1f} | {report.gap_p99_s * 1e3:.1f} "
            f"| {report.num_tokens / report.num_messages:.2f} | {front} |"
        )


class Load:
    """The process of the clients."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, job: Job) -> Report:
        """Have a job done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Report)


@dataclass(frozen=True, slots=True)
class Server:
    """A running `weft serve`."""

    pid: int
    http_port: int
    grpc_port: int

    def cpu_s(self) -> float:
        """Processor time of the front end so far; the engine is another process."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@contextmanager
def load() -> Iterator[Load]:
    """Clients that wait for jobs."""
    path = Path(__file__).parent / "serve_load.py"
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


@contextmanager
def server(
    model: str, *argv: str, max_model_len: int = MAX_MODEL_LEN, num_blocks: int = NUM_BLOCKS
) -> Iterator[Server]:
    """`weft serve MODEL`, ready."""
    command = [sys.executable, "-m", "weft.cli.main", "serve", model, "--port=0", "--grpc-port=0"]
    limits = [f"--max-model-len={max_model_len}", f"--num-gpu-blocks-override={num_blocks}"]
    with subprocess.Popen(
        [*command, *limits, "--served-model-name=m", "--log-level=error", *argv],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        try:
            yield Server(process.pid, *_ports(process))
        finally:
            process.terminate()


def _ports(process: subprocess.Popen[str]) -> tuple[int, int]:
    found: dict[str, int] = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, _, rest = line.strip().partition(" ")
        if name in ("HTTP", "gRPC"):
            found[name] = int(rest.split()[0].rpartition(":")[2])
        if name == "try":
            return found["HTTP"], found["gRPC"]
    raise SystemExit("the server did not start")


@asynccontextmanager
async def engine(model: str, interval_ms: float) -> AsyncIterator[ProcessClient]:
    """An engine with nothing in front."""
    options = EngineOptions(
        model=model,
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks_override=NUM_BLOCKS,
        stream_interval_ms=interval_ms,
    )
    checkpoint = open_model(model)
    client = await ProcessClient.start(checkpoint, resolve(options, checkpoint.card, 8 << 30))
    try:
        yield client
    finally:
        client.shutdown()
        await client.wait_closed()


async def alone(client: ProcessClient, job: Job) -> Report:
    """The same work, asked of the engine's client in this process."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=job.max_tokens,
        ignore_eos=True,
        output_kind=OutputKind.DELTA,
    )

    async def ask(prompt: list[int], seen: Seen) -> None:
        tokens: TokensPrompt = {"prompt_token_ids": prompt}
        async with aclosing(client.generate(tokens, params, f"{id(seen):x}")) as outputs:
            async for output in outputs:
                seen.take(sum(len(answer.token_ids) for answer in output.outputs))

    return await drive(ask, job.prompts, job.num_clients)


async def measure(
    model: str, interval_ms: float, arguments: argparse.Namespace, say: Callable[[str], None]
) -> None:
    """Say the rows of one model as they come."""
    dice = random.Random(0)
    with load() as clients, server(model, f"--stream-interval-ms={interval_ms:g}") as served:
        async with engine(model, interval_ms) as client:
            for num_clients in arguments.clients:
                for way in ("engine alone", *arguments.ways):
                    num_prompts = num_clients * arguments.rounds
                    prompts = [
                        [dice.randrange(256) for _ in range(arguments.prompt_tokens)]
                        for _ in range(num_prompts + num_clients)
                    ]
                    port = served.grpc_port if way == "gRPC" else served.http_port
                    job = Job(
                        way=WAYS.get(way, way),
                        port=port,
                        model="m",
                        prompts=prompts[num_prompts:],
                        max_tokens=arguments.tokens,
                        num_clients=num_clients,
                    )
                    real = msgspec.structs.replace(job, prompts=prompts[:num_prompts])
                    say(str(await _row(way, (client, clients, served), job, real)))


async def _row(way: str, parts: tuple[ProcessClient, Load, Server], warm: Job, job: Job) -> Row:
    """Once to warm up, once to count."""
    client, clients, served = parts
    if way == "engine alone":
        await alone(client, warm)
        return Row(way, job.num_clients, await alone(client, job), None)
    await asyncio.to_thread(clients.run, warm)
    before = served.cpu_s()
    report = await asyncio.to_thread(clients.run, job)
    front_ms = (served.cpu_s() - before) / report.num_tokens * 1e6
    return Row(way, job.num_clients, report, front_ms)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--rounds", type=int, default=4, help="requests a client")
    parser.add_argument("--stream-interval-ms", nargs="+", type=float, default=[25.0])
    parser.add_argument("--out", type=Path, help="write the tables there too")
    arguments = parser.parse_args()
    report: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        report.append(line)

    for line in _title():
        say(line)
    for name in arguments.models:
        for interval_ms in arguments.stream_interval_ms:
            pace = f"{interval_ms:g} ms between events" if interval_ms else "no pace"
            say(f"\n## {name}, {pace}\n\n{_HEADER}")
            asyncio.run(measure(MODELS[name], interval_ms, arguments, say))
    if arguments.out is not None:
        arguments.out.write_text("\n".join(report) + "\n", encoding="utf-8")


_HEADER = (
    "| clients | way | tokens/s | first token p50, ms | p99, ms | between events p99, ms "
    "| tokens a message | front, ms of CPU a 1,000 tokens |\n|---|---|---|---|---|---|---|---|"
)


def _title() -> list[str]:
    """What ran, and where."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    what = " ".join(["python", *sys.argv])
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return [
        "# Serving\n",
        f"`{what}` at {commit}, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}.\n",
        (
            f"Machine: {model}, {os.cpu_count()} virtual CPUs, shared by clients, front end and engine; load average "
            f"at the start {loads}. CPU of the front end is the least noisy column. Without a front end "
            "there is no such time: the engine's client is in the benchmark itself."
        ),
    ]


if __name__ == "__main__":
    main()
