"""How long streams pause while prompts are computed beside them: servers with steps of other sizes, in turns.

`python -m benchmarks.step_sizes`; README.md says how to read the table.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass

import psutil

from benchmarks.peers.environments import ROOT
from benchmarks.peers.served import free_port, start
from benchmarks.serve_load import Job, drive, over_http, quantile

SMOLLM2 = (
    "embedded:random?layers=30&hidden=576&heads=9&kv_heads=3&head_dim=64&intermediate=1536&vocab=49152"
    "&dtype=bfloat16&max_len=8192"
)
VOCAB = 49152
WAYS = {
    "512 rows": ["--max-num-batched-tokens=512"],
    "auto": ["--max-num-batched-tokens=auto"],
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One load on one server."""

    tokens_per_s: float
    cpu_ms: float  # of the server and its engine, a token
    first_p50_s: float
    first_p99_s: float
    gap_p50_s: float
    gap_p99_s: float

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_s:.1f} | {self.cpu_ms:.2f} | {self.first_p50_s:.2f} / {self.first_p99_s:.2f} "
            f"| {1e3 * self.gap_p50_s:.0f} / {1e3 * self.gap_p99_s:.0f}"
        )


async def run(options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Of each way one a repetition; the first is thrown away."""
    found: dict[str, list[Turn]] = {name: [] for name in WAYS}
    async with AsyncExitStack() as stack:
        servers: dict[str, tuple[int, int]] = {}
        for name, flags in WAYS.items():
            port = free_port()
            command = [sys.executable, "-m", "weft.cli.main", "serve", options.model, *flags]
            command += [f"--port={port}", f"--grpc-port={free_port()}"]
            command += ["--served-model-name=m", "--max-model-len=8192"]
            command += ["--num-gpu-blocks-override=2048", "--no-enable-prefix-caching"]
            label = f"step-sizes-{name.replace(' ', '-')}"
            servers[name] = port, await start(label, command, {}, stack, port)
        for repetition in range(options.repetitions + 1):
            names = list(WAYS) if repetition % 2 else list(reversed(WAYS))
            for name in names:
                turn = await measure(*servers[name], options, repetition)
                print(f"| {name} | {turn} |", flush=True)
                found[name] += [turn] if repetition else []
    return found


async def measure(port: int, pid: int, options: argparse.Namespace, seed: int) -> Turn:
    """Each client takes the next prompt as soon as its last answer is whole."""
    draw = random.Random(seed)
    prompts = [
        [draw.randrange(VOCAB) for _ in range(options.prompt_tokens)]
        for _ in range(options.prompts)
    ]
    job = Job(
        way="/v1/completions",
        port=port,
        model="m",
        prompts=prompts,
        max_tokens=options.max_tokens,
        num_clients=options.clients,
    )
    before_s = cpu_s(pid)
    report = await drive(over_http(job, job.way), prompts, options.clients)
    return Turn(
        report.num_tokens / report.seconds,
        1e3 * (cpu_s(pid) - before_s) / report.num_tokens,
        quantile(report.firsts_s, 0.5),
        quantile(report.firsts_s, 0.99),
        report.gap_p50_s,
        report.gap_p99_s,
    )


def cpu_s(pid: int) -> float:
    """Processor time of a server and its engine."""
    server = psutil.Process(pid)
    times = (process.cpu_times() for process in (server, *server.children(recursive=True)))
    return sum(one.user + one.system for one in times)


def main() -> None:
    """Print every turn, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SMOLLM2, help=f"with a vocabulary of {VOCAB} at least")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    ROOT.mkdir(parents=True, exist_ok=True)
    print("| steps | tok/s | CPU, ms a token | first token p50 / p99, s | between p50 / p99, ms |")
    print("| --- | --- | --- | --- | --- |")
    found = asyncio.run(run(options))
    for name, turns in found.items():
        medians = [statistics.median(values) for values in zip(*map(astuple, turns), strict=True)]
        print(f"| {name}, median | {Turn(*medians)} |")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
