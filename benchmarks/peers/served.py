"""W5: 16 clients that stream from a server, Weft's over gRPC and HTTP beside vLLM's over HTTP.

`python benchmarks/peers/served.py`. The clients share the machine with the servers, as small ones do.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.peers.checkpoints import SHAPES, Shape, write_checkpoint
from benchmarks.peers.compare import machine
from benchmarks.peers.environments import ROOT, VLLM, vllm_variables
from benchmarks.peers.workloads import SERVED, SERVED_CLIENTS
from benchmarks.serve_load import Ask, Job, drive, over_grpc, over_http, quantile

START_TIMEOUT_S = 600.0
HEALTH_TIMEOUT_S = 5.0
BLOCK_SIZE = 16  # of Weft's KV cache
SERVERS = ("weft", "vllm")


@dataclass(frozen=True, slots=True)
class Served:
    """One server, once: 32 requests by 16 clients."""

    server: str
    tokens_per_s: float
    first_p50_s: float
    first_p99_s: float
    between_p50_s: float
    between_p99_s: float


async def measure(server: str, ask: Ask, prompts: list[list[int]]) -> Served:
    """Each client takes the next prompt as soon as its last answer is whole."""
    report = await drive(ask, prompts, SERVED_CLIENTS)
    if report.num_tokens != len(prompts) * SERVED.max_tokens:
        raise RuntimeError(f"{server}: {report.num_tokens} tokens came")
    return Served(
        server,
        tokens_per_s=report.num_tokens / report.seconds,
        first_p50_s=quantile(report.firsts_s, 0.5),
        first_p99_s=quantile(report.firsts_s, 0.99),
        between_p50_s=report.gap_p50_s,
        between_p99_s=report.gap_p99_s,
    )


def over_completions(port: int, model: str) -> Ask:
    """OpenAI's completions."""
    return over_http(_job("/v1/completions", port, model), "/v1/completions")


def _job(way: str, port: int, model: str) -> Job:
    return Job(
        way=way,
        port=port,
        model=model,
        prompts=[],
        max_tokens=SERVED.max_tokens,
        num_clients=SERVED_CLIENTS,
    )


async def start(
    name: str, command: list[str], variables: dict[str, str], stack: AsyncExitStack, port: int
) -> int:
    """Start a server and wait until it is healthy; the id of its process."""
    started = time.perf_counter()
    log = stack.enter_context((ROOT / f"{name}-server.log").open("w"))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | variables
    )

    async def stop() -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 20.0)
        except TimeoutError:
            process.kill()
            await process.wait()

    stack.push_async_callback(stop)
    while not await _answers(port):
        if process.returncode is not None or time.perf_counter() - started > START_TIMEOUT_S:
            raise RuntimeError(f"{name} did not start; see its log in {ROOT}")
        await asyncio.sleep(0.05)
    print(f"{name} is healthy after {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return process.pid


async def _answers(port: int) -> bool:
    try:
        return await asyncio.wait_for(_is_healthy(port), HEALTH_TIMEOUT_S)
    except (OSError, TimeoutError):  # not there yet, or too busy with its start
        return False


async def _is_healthy(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def run(shape: Shape, servers: Sequence[str], repetitions: int) -> list[Served]:
    """The servers side by side, in turns; the order turns round from one repetition to the next."""
    checkpoint = str(write_checkpoint(shape, ROOT / shape.name))
    results: list[Served] = []
    async with AsyncExitStack() as stack:
        asks: dict[str, Ask] = {}
        if "weft" in servers:
            asks |= await _start_weft(checkpoint, shape, stack)
        if "vllm" in servers:
            asks |= await _start_vllm(checkpoint, shape, stack)
        for repetition in range(repetitions + 1):  # the first warms up
            order = list(asks.items())
            for place, (name, ask) in enumerate(order if repetition % 2 else reversed(order)):
                # New ones for each, for two of the ways lead to one prefix cache.
                prompts = SERVED.prompts(shape.vocab, len(asks) * repetition + place)
                served = await measure(name, ask, prompts)
                results += [served] if repetition else []
    return results


async def _start_weft(checkpoint: str, shape: Shape, stack: AsyncExitStack) -> dict[str, Ask]:
    http, rpc = free_port(), free_port()
    command = [sys.executable, "-m", "weft.cli.main", "serve", checkpoint, "--port", str(http)]
    command += ["--grpc-port", str(rpc), "--max-model-len", "8192"]
    # As many tokens as one run has, so that the run that is thrown away writes all of it.
    num_blocks = SERVED.num_prompts * (SERVED.prompt_tokens + SERVED.max_tokens) // BLOCK_SIZE
    command += ["--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(num_blocks)]
    command += ["--served-model-name", shape.name]
    await start("weft", command, {}, stack, http)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{rpc}"))
    grpc_ask = over_grpc(_job("grpc", rpc, shape.name), channel)
    return {"weft gRPC": grpc_ask, "weft HTTP": over_completions(http, shape.name)}


async def _start_vllm(checkpoint: str, shape: Shape, stack: AsyncExitStack) -> dict[str, Ask]:
    VLLM.make()
    port = free_port()
    command = [str(VLLM.python), "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint]
    command += ["--port", str(port), "--host", "127.0.0.1", "--max-model-len", "8192"]
    command += ["--served-model-name", shape.name, "--dtype", "bfloat16"]
    await start("vllm", command, vllm_variables(os.cpu_count() or 1), stack, port)
    return {"vllm HTTP": over_completions(port, shape.name)}


def table(results: list[Served]) -> str:
    """Medians over the repetitions; then each beside vLLM in the same one, where over 1 is better."""
    lines = [
        (
            "| server | tok/s | first token p50 / p99, ms | between messages p50 / p99, ms "
            "| tok/s beside vLLM | first token beside vLLM |"
        ),
        "|---|---|---|---|---|---|",
    ]
    peers = [result for result in results if result.server.startswith("vllm")]
    for name in dict.fromkeys(result.server for result in results):
        runs = [result for result in results if result.server == name]
        rate, first, first_99, gap, gap_99 = (
            statistics.median(getattr(run, field) for run in runs)
            for field in (
                "tokens_per_s", "first_p50_s", "first_p99_s", "between_p50_s", "between_p99_s",
            )
        )  # fmt: skip
        lines.append(
            f"| {name} | {rate:.0f} | {1000 * first:.0f} / {1000 * first_99:.0f} "
            f"| {1000 * gap:.1f} / {1000 * gap_99:.1f} | {_ratios(runs, peers)} |"
        )
    return "\n".join(lines)


def _ratios(runs: list[Served], peers: list[Served]) -> str:
    if not peers or runs[0].server == peers[0].server:
        return " | "
    pairs = list(zip(runs, peers, strict=True))
    rate = statistics.median(run.tokens_per_s / peer.tokens_per_s for run, peer in pairs)
    first = statistics.median(peer.first_p50_s / run.first_p50_s for run, peer in pairs)
    return f"{rate:.2f} | {first:.2f}"


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", default=names, choices=names)
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=SERVERS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write every run as JSON")
    arguments = parser.parse_args()
    ROOT.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "shapes": {}}
    for shape in (one for one in SHAPES if one.name in arguments.shapes):
        results = asyncio.run(run(shape, arguments.servers, arguments.repetitions))
        print(f"\n### {shape.name}, W5\n\n{table(results)}\n", flush=True)
        found["shapes"][shape.name] = [asdict(result) for result in results]
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
