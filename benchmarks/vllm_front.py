"""Our servers before vLLM's engine beside vLLM's own HTTP server before the same: what the front costs.

`python -m benchmarks.vllm_front` after `make test-vllm`, whose environment both run in; README.md says how to
read the table. One engine runs at a time: each server in its turn, and the order turns round.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from benchmarks.peers.checkpoints import Shape, write_checkpoint
from benchmarks.peers.environments import ROOT
from benchmarks.peers.served import free_port, start
from benchmarks.serve import Load, Row
from benchmarks.serve_load import Job
from weft.model.embedded.byte_tokenizer import tokenizer_files

ENVIRONMENT = ROOT / "vllm-tests" / "bin"
SERVERS = {
    "Weft": (str(ENVIRONMENT / "python"), "-m", "weft.cli.main", "serve", "--engine", "vllm"),
    "vLLM": (str(ENVIRONMENT / "vllm"), "serve"),
}
OWN = {"Weft": ("--no-grpc",), "vLLM": ("--disable-uvicorn-access-log",)}
WAYS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
SHAPE = Shape("small", "llama", 2, 64, 2, 1, 32, 64, 400, 1e4)  # whose steps are nearly free
ENGINE = ("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "64")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"
)
HEADER = """\
| clients | way | tokens/s | first p50, ms | first p99, ms | gap p99, ms | tokens a message \
| front's CPU, ms a 1,000 tokens | load average |
|---|---|---|---|---|---|---|---|---|"""
NUM_TOKENS = 64
PROMPT_TOKENS = 16
VARIABLES = {
    "PYTHONPATH": str(ROOT.parent.parent / "src"),  # Weft is not installed there
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class Front:
    """What is not the engine: the process that was started, and its helpers."""

    root: psutil.Process

    def cpu_s(self) -> float:
        """Processor time so far."""
        family = [self.root, *self.root.children(recursive=True)]
        times = [one.cpu_times() for one in family if not _is_engine(one)]
        return sum(spent.user + spent.system for spent in times)


def _is_engine(process: psutil.Process) -> bool:
    return process.name().startswith("VLLM::")


@contextmanager
def clients() -> Iterator[Load]:
    """The process of the clients."""
    path = Path(__file__).parent / "serve_load.py"
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Load(process)


def measured(server: str, port: int, front: Front, load: Load, streams: list[int]) -> None:
    """All rows of one server that runs. Before each job every client asks once, which does not count."""
    for way, path in WAYS.items():
        for num_clients in streams:
            job = Job(
                way=path,
                port=port,
                model=SHAPE.name,
                prompts=_prompts(max(24, 3 * num_clients), seed=num_clients),
                max_tokens=NUM_TOKENS,
                num_clients=num_clients,
            )
            load.run(msgspec.structs.replace(job, prompts=job.prompts[:num_clients]))
            began = front.cpu_s()
            report = load.run(job)
            front_ms = (front.cpu_s() - began) * 1e6 / report.num_tokens
            row = Row(f"{server}, {way}", num_clients, report, front_ms)
            print(row, f"{os.getloadavg()[0]:.1f} |", flush=True)


def _prompts(number: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(100, 390) for _ in range(PROMPT_TOKENS)] for _ in range(number)]


def written() -> Path:
    """The checkpoint. It repeats the last token of a prompt, which is to be no space: those are held back."""
    checkpoint = write_checkpoint(SHAPE, ROOT / "vllm-front")
    files = tokenizer_files(SHAPE.vocab, "<|endoftext|>")
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": TEMPLATE}
    (checkpoint / "tokenizer.json").write_bytes(files["tokenizer.json"])
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    return checkpoint


async def turn(server: str, checkpoint: Path, streams: list[int]) -> None:
    """One server from its start to its end."""
    port = free_port()
    command = [
        *SERVERS[server], str(checkpoint), "--port", str(port), "--served-model-name", SHAPE.name,
        *ENGINE, *OWN[server],
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        await start(server, command, VARIABLES, stack, port)
        front = Front(_serving(command))
        with clients() as load:
            await asyncio.to_thread(measured, server, port, front, load, streams)


def _serving(command: list[str]) -> psutil.Process:
    """The child that was started with this command."""
    for child in psutil.Process().children():
        if child.cmdline()[-len(command) + 1 :] == command[1:]:
            return child
    raise RuntimeError("the server has ended")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--repetitions", type=int, default=2)
    arguments = parser.parse_args()
    checkpoint = written()
    print(HEADER)
    for repetition in range(arguments.repetitions):
        for server in sorted(SERVERS, reverse=bool(repetition % 2)):
            asyncio.run(turn(server, checkpoint, arguments.streams))


if __name__ == "__main__":
    main()
