"""What a routed request costs, and what prefix-aware routing gains: `python benchmarks/route.py`.

Four parts, under five minutes together (`route_envoy.py` measures the picker behind Envoy):

- the picker alone: ext_proc messages straight to `weft epp`, CPU from the process's own clock;
- flow control, and tracing: the same with it and without it, in turns;
- the gain: two real Weft workers and prompts that share prefixes, round robin against prefix-aware.

CPU milliseconds hardly depend on who else uses the machine; requests a second and latencies do.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.route_processes import WEFT, Result, envoy, measure, picker, process, servers
from weft.cli.up.envoy import EnvoyPlan
from weft.cli.up.picker_config import PICKER_CONFIG
from weft.pb.ext_proc_pb2 import BodySendMode, ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub
from weft.pb.vllm_engine_pb2 import GenerateRequest, TokenizedInput
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

_UNUSED = ("anthropic-parser", "vllmhttp-parser", "passthrough-parser")
SCORERS = "".join(
    line
    for line in PICKER_CONFIG.splitlines(keepends=True)
    if not any(name in line for name in _UNUSED)
)
# Large enough for a prompt to cost what a small real model asks for it.
MODEL = (
    "embedded:random?layers=8&hidden=512&heads=8&kv_heads=4&head_dim=64&intermediate=1536&vocab=8192"
    "&max_len=4096&dtype=bfloat16"
)


# ---- Requests --------------------------------------------------------------------------------------


def chat(number: int, num_tokens: int, *, stream: bool = True) -> bytes:
    """About `num_tokens` tokens: half a system prompt that many share, half of its own."""
    half = num_tokens * 2  # four bytes a token
    system = ("You are a helpful assistant. " * (half // 29 + 1))[:half]
    own = (f"Question {number}: what is {number * 7919}? " * (half // 20 + 1))[:half]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": own}]
    return json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()


def token_frame(number: int, num_tokens: int) -> bytes:
    """The same as a gRPC frame of token ids."""
    shared = [(index * 31) % 50_000 for index in range(num_tokens // 2)]
    own = [(number * 7919 + index) % 50_000 for index in range(num_tokens - num_tokens // 2)]
    message = GenerateRequest(tokenized=TokenizedInput(input_ids=shared + own), stream=True)
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def messages(path: str, content_type: str, body: bytes) -> list[ProcessingRequest]:
    """What Envoy sends of one request; a gRPC body comes in pieces of 16 kB."""
    opening = ProcessingRequest()
    for key, value in {
        ":method": "POST", ":path": path, ":authority": "model", "content-type": content_type,
        "user-agent": "bench", "accept": "*/*", "x-request-id": os.urandom(8).hex(),
        "x-forwarded-proto": "http",
    }.items():  # fmt: skip
        opening.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    opening.protocol_config.request_body_mode = BodySendMode.FULL_DUPLEX_STREAMED
    opening.protocol_config.response_body_mode = BodySendMode.FULL_DUPLEX_STREAMED
    out = [opening]
    size = 16_384 if "grpc" in content_type else 1_000_000
    for start in range(0, len(body), size):
        piece = ProcessingRequest()
        piece.request_body.body = body[start : start + size]
        piece.request_body.end_of_stream = start + size >= len(body)
        out.append(piece)
    return out


def streamed_response() -> list[ProcessingRequest]:
    """Headers and 100 events."""
    opening = ProcessingRequest()
    for key, value in {":status": "200", "content-type": "text/event-stream"}.items():
        opening.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    out = [opening]
    for number in range(101):
        piece = ProcessingRequest()
        piece.response_body.body = (
            b'data: {"choices":[{"delta":{"content":"word %d"}}]}\n\n' % number
        )
        piece.response_body.end_of_stream = number == 100
        out.append(piece)
    return out


# ---- The picker alone ------------------------------------------------------------------------------


async def alone(
    address: str, pid: int, make: Callable[[int], list[ProcessingRequest]], **how: Any
) -> Result:
    """Streams of messages straight to the picker."""
    async with grpc.aio.insecure_channel(
        address, [("grpc.max_receive_message_length", -1)]
    ) as channel:
        process_stream = ExternalProcessorStub(channel).Process

        async def one(number: int) -> None:
            call = process_stream()
            for message in make(number):
                await call.write(message)
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # no stub has it
                pass
            assert await call.code() is grpc.StatusCode.OK

        return await measure(one, pids={"picker": pid}, **how)


def http_messages(num_tokens: int) -> Callable[[int], list[ProcessingRequest]]:
    """Chats of this length."""
    path = "/v1/chat/completions"
    return lambda number: messages(path, "application/json", chat(number, num_tokens))


def grpc_messages(num_tokens: int) -> Callable[[int], list[ProcessingRequest]]:
    """Generate with this many ids."""
    path = "/vllm.grpc.engine.VllmEngine/Generate"
    return lambda number: messages(path, "application/grpc", token_frame(number, num_tokens))


async def part_alone(report: list[str]) -> None:
    """CPU a request, and how it grows."""
    report += ["", "## The picker alone", "", "queue, KV and prefix scorers; 8 streams at once.", "",
               "| request | endpoints | CPU ms a request | requests/s | p50 ms | p99 ms |",
               "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for count in (2, 10, 100):
        async with (
            servers(count) as endpoints,
            picker(endpoints, "--config-text", SCORERS) as (pid, address),
        ):
            rows = [("chat, 200 tokens", http_messages(200), 1500)]
            if count == 10:
                rows += [("Generate, 200 ids", grpc_messages(200), 1500)]
                rows += [
                    (f"chat, {n:,} tokens", http_messages(n), c)
                    for n, c in ((1000, 600), (10_000, 300), (100_000, 60))
                ]
                rows += [
                    (f"Generate, {n:,} ids", grpc_messages(n), c)
                    for n, c in ((1000, 600), (10_000, 300), (100_000, 60))
                ]
            for name, make, number in rows:
                show(report, name, count, await alone(address, pid, make, count=number, lanes=8))
    async with (
        servers(10) as endpoints,
        picker(endpoints, "--config-text", SCORERS, "--track-responses") as (pid, address),
    ):
        response = streamed_response()
        result = await alone(
            address, pid, lambda n: http_messages(200)(n) + response, count=300, lanes=8
        )
        show(report, "chat, 200 tokens, 100 streamed events followed", 10, result)


RUNS = 10
# The second is never full, so nobody waits; in the third requests wait for the next reports of load.
FLOW_CONTROLS = {
    "without": SCORERS,
    "with": SCORERS.replace(
        "- type: queue-scorer\n",
        "- type: queue-scorer\n- type: round-robin-fairness-policy\n"
        "- {type: utilization-detector, parameters: {queueDepthThreshold: 1000000}}\n",
        1,
    )
    + "featureGates: [flowControl]\n"
    "flowControl: {defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}}\n",
    "with, requests wait": SCORERS + "featureGates: [flowControl]\n",
}


async def part_flow(report: list[str]) -> None:
    """What flow control adds to a request."""
    flags = {name: ("--config-text", text) for name, text in FLOW_CONTROLS.items()}
    await in_turns(report, "Flow control", flags)


async def part_tracing(report: list[str]) -> None:
    """What two spans add to a request, with their way to a collector."""
    async with collector() as address:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = address
        flags = {"off": ("--config-text", SCORERS), "on": ("--config-text", SCORERS, "--tracing")}
        await in_turns(report, "Tracing", flags)


@asynccontextmanager
async def collector() -> AsyncIterator[str]:
    """One that takes all spans and reads none."""

    async def export(_spans: bytes, _context: Any) -> bytes:
        return b""

    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def in_turns(report: list[str], title: str, flags: Mapping[str, tuple[str, ...]]) -> None:
    """Pickers with these flags beside each other: the first is what the others add to."""
    names = list(flags)
    report += ["", f"## {title}", "",
               "CPU ms a request: chat, 200 tokens, 10 endpoints, 8 streams at once; pickers in turns, back and forth.",
               "", f"| run | {' | '.join(names)} |", f"|{' --- |' * (len(names) + 1)}"]  # fmt: skip
    runs: dict[str, list[float]] = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        endpoints = await stack.enter_async_context(servers(10))
        pickers = {
            name: await stack.enter_async_context(picker(endpoints, *argv))
            for name, argv in flags.items()
        }
        for run in range(1, RUNS + 1):
            for name in names if run % 2 else reversed(names):
                pid, address = pickers[name]
                result = await alone(address, pid, http_messages(200), count=1000, lanes=8)
                runs[name].append(result.cpu_ms["picker"])
            row = " | ".join(f"{values[-1]:.3f}" for values in runs.values())
            print(f"| {run} | {row} |", flush=True)
            report.append(f"| {run} | {row} |")
    for name in names[1:]:
        added = sorted(b - a for a, b in zip(runs[names[0]], runs[name], strict=True))
        report.append(
            f"\nAdded, {name}: {median(added):+.3f} ms, the median of the differences run by run "
            f"({added[0]:+.3f} to {added[-1]:+.3f})"
        )
        print(report[-1].strip())


def show(report: list[str], name: str, count: int, result: Result) -> None:
    """One row."""
    row = (
        f"| {name} | {count} | {result.cpu_ms['picker']:.2f} | {result.per_second:.0f} | "
        f"{result.percentile(50):.1f} | {result.percentile(99):.1f} |"
    )
    print(row, flush=True)
    report.append(row)


# ---- The gain --------------------------------------------------------------------------------------

NUM_GROUPS = 20
NUM_CACHED = 12  # groups that fit one worker's cache: the half of them, and some room
PREFIX_TOKENS = 1024
WARM_UP = 40


async def part_gain(report: list[str]) -> None:
    """Prompts in groups that share a prefix; one worker's cache holds little more than half of them."""
    report += ["", "## The gain", "",
               (f"Two Weft workers ({MODEL}), one thread each; {NUM_GROUPS} groups of prompts that "
                f"share {PREFIX_TOKENS:,} tokens, 16 of their own, 8 out; each worker's cache holds "
                f"{NUM_CACHED} of the groups; 6 requests at once, the groups in random order. The runs "
                "alternate, each after a warm-up."), "",
               "| routing | requests/s, run by run | p50 ms | p99 ms | prompt tokens from cache |",
               "| --- | --- | --- | --- | --- |"]  # fmt: skip
    argv = ("serve", MODEL, "--no-http", "--grpc-port=0", "--log-level=error", "--max-model-len=1200",
            f"--num-gpu-blocks-override={NUM_CACHED * (PREFIX_TOKENS // 16) + 24}", "--max-num-seqs=4")  # fmt: skip
    async with (
        process(*WEFT, *argv, ready="  gRPC") as one,
        process(*WEFT, *argv, ready="  gRPC") as two,
    ):
        addresses = [lines[-1].split()[1] for _, lines in (one, two)]
        workers = [(host, int(port)) for host, port in (a.split(":") for a in addresses)]
        flags = ("--config-text", PICKER_CONFIG, "--default-engine=vllm-grpc")
        plan = EnvoyPlan(picker=("127.0.0.1", 1), grpc_workers=workers)
        async with picker(addresses, *flags) as (_, address):
            host, _, port = address.partition(":")
            async with (
                envoy(plan) as (_, plain),
                envoy(replace(plan, picker=(host, int(port)))) as (_, aware),
            ):
                await gain_rows(report, plain, aware)


async def gain_rows(report: list[str], plain: int, aware: int) -> None:
    """Two runs of each, in turn."""
    runs: dict[str, list[tuple[Result, float]]] = {"round robin": [], "prefix-aware": []}
    for _ in range(2):
        for name, port in (("round robin", plain), ("prefix-aware", aware)):
            runs[name].append(await shared_prefixes(port))
            result, share = runs[name][-1]
            print(f"{name}: {result.per_second:.1f} requests/s, {share:.0%} cached", flush=True)
    for name, results in runs.items():
        rates = ", ".join(f"{result.per_second:.1f}" for result, _ in results)
        last, share = results[-1]
        report.append(
            f"| {name} | {rates} | {last.percentile(50):.0f} | {last.percentile(99):.0f} | {share:.0%} |"
        )
    totals = [sum(result.per_second for result, _ in results) for results in runs.values()]
    report += ["", f"Prefix-aware / round robin: {totals[1] / totals[0]:.2f}"]
    print(report[-1])


async def shared_prefixes(port: int, count: int = 100) -> tuple[Result, float]:
    """The load, and the share of its prompt tokens that came from a cache."""
    cached = total = 0
    # In a fixed cycle, round robin over two workers would happen to split the groups between them.
    order = random.Random(port)
    groups = [order.randrange(NUM_GROUPS) for _ in range(count + WARM_UP)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = VllmEngineStub(channel)

        async def one(number: int) -> None:
            nonlocal cached, total
            group = groups[number]
            ids = [(group * 131 + index * 17) % 1000 for index in range(PREFIX_TOKENS)]
            ids += [(number * 53 + index) % 1000 for index in range(16)]
            request = GenerateRequest(tokenized=TokenizedInput(input_ids=ids))
            request.sampling_params.max_tokens = 8
            request.sampling_params.ignore_eos = True
            async for answer in stub.Generate(request):
                if number < WARM_UP:
                    continue
                cached += answer.complete.cached_tokens
                total += answer.complete.prompt_tokens

        result = await measure(one, count=count, lanes=6, pids={}, warm=WARM_UP)
    return result, cached / total


# ---- All of it -------------------------------------------------------------------------------------


def machine() -> list[str]:
    """Where this ran."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in info if line[:5] == "model"), "")
    model = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), model)
    command = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    what = (
        f"`python benchmarks/route.py` at {commit}, {time.strftime('%Y-%m-%d')}, "
        f"Python {platform.python_version()}, grpcio {grpc.__version__}, Envoy 1.40.0."
    )
    where = (
        f"Machine: {model}, {os.cpu_count()} virtual CPUs shared by load generator, servers, Envoy, "
        f"picker and other users; load average at the start {load()}. CPU a request is the least noisy; "
        "requests a second and latencies are noisy, and bounded by the load generator's share."
    )
    return ["# Routing", "", what, "", where]


def load() -> str:
    """How busy the machine is."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def write(report: list[str], out: Path | None) -> None:
    """Keep the report."""
    if out is not None:
        out.write_text("\n".join(report) + "\n", encoding="utf-8")


async def main(parts: Sequence[str], out: Path | None) -> None:
    """Measure and report."""
    report = machine()
    for name, part in (
        ("alone", part_alone),
        ("flow", part_flow),
        ("tracing", part_tracing),
        ("gain", part_gain),
    ):
        if name in parts:
            await part(report)
    report += ["", f"Load average at the end {load()}."]
    write(report, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["alone", "flow", "tracing", "gain"])
    parser.add_argument("--out", type=Path, help="write the report here (Markdown)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.parts, arguments.out))
