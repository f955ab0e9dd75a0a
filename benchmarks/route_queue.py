"""What requests that wait in the picker cost: `python benchmarks/route_queue.py`.

Ten thousand ext_proc streams wait at once in a real `weft epp` over loopback, each with its body of a kilobyte
and a flow of its own or of a hundred. The picker's memory is read before, while they wait, and after they have
left; the CPU of the picker is what it took to have them wait, a request. The first row is no picker: a server of
grpc.aio with the picker's settings, that reads the same messages and does nothing. What a stream takes beyond
that is the picker's own. In the second row streams sent their headers only.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.route import SCORERS, chat, load, machine, messages, write
from benchmarks.route_processes import picker, process, servers
from weft.epp.server import ext_proc
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub
from weft.wire.ports import server_args

# One request is sent on and never ends, as far as the picker knows: all others wait.
CONFIG = (
    SCORERS.replace(
        "- type: queue-scorer\n",
        "- type: queue-scorer\n- type: round-robin-fairness-policy\n- type: program-aware-fairness\n"
        "- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n",
        1,
    )
    + "featureGates: [flowControl]\n"
    "flowControl: {saturationDetector: {pluginRef: concurrency-detector}, defaultRequestTTL: 30m,"
    " defaultPriorityBand: {maxRequests: 100k, fairnessPolicyRef: %s}}\n"
)
POLICIES = ("round-robin-fairness-policy", "program-aware-fairness")
STREAMS_A_CONNECTION = 1000
BARE = "grpc.aio alone"
MIB = 2**20


def request(number: int, num_flows: int) -> list[ProcessingRequest]:
    """A chat of about a kilobyte, of one of the flows."""
    made = messages("/v1/chat/completions", "application/json", chat(number, 240))
    made[0].request_headers.headers.headers.add(
        key="x-llm-d-inference-fairness-id", raw_value=f"flow-{number % num_flows}".encode()
    )
    return made


async def wait_in(
    address: str, pid: int, count: int, num_flows: int, num_messages: int | None
) -> dict[str, float]:
    """Memory, in MiB, and CPU, in milliseconds a request, of so many that wait."""
    process = psutil.Process(pid)
    channels = [
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-count // STREAMS_A_CONNECTION) + 1)
    ]
    calls: list[Any] = []

    async def send(number: int) -> None:
        stub = ExternalProcessorStub(channels[number // STREAMS_A_CONNECTION])
        call = stub.Process()
        calls.append(call)
        for message in request(number, num_flows)[:num_messages]:
            await call.write(message)

    # Warm: one that is sent on and stays, and a hundred that wait, so that what is loaded late is loaded.
    for number in range(100):
        await send(number)
    await asyncio.sleep(2)
    memory, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
    for first in range(100, count, 50):
        await asyncio.gather(*(send(number) for number in range(first, min(first + 50, count))))
    await asyncio.sleep(3)
    full, cpu = process.memory_info().rss, sum(process.cpu_times()[:2]) - cpu
    assert all(not call.done() for call in calls), "a request did not wait"
    began = sum(process.cpu_times()[:2])
    for call in calls:
        call.cancel()
    await asyncio.gather(*(channel.close(None) for channel in channels))
    await asyncio.sleep(3)
    left = sum(process.cpu_times()[:2]) - began
    return {
        "idle": memory / MIB, "waiting": full / MIB, "added": (full - memory) / MIB,
        "after": process.memory_info().rss / MIB,
        "cpu": cpu * 1000 / (count - 100), "leaving": left * 1000 / count,
    }  # fmt: skip


async def serve_bare(count: int) -> None:
    """Read messages, and answer none of them."""

    async def read(_: object, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # no stub has it
            pass
        return b""

    limits = server_args(max_calls=2 * count, max_streams=2 * count, max_receive_bytes=4 * MIB)
    server = grpc.aio.server(options=limits)
    handler = grpc.stream_unary_rpc_method_handler(read, request_deserializer=ext_proc.decode)
    methods = {ext_proc.METHOD: handler}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(ext_proc.SERVICE, methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@asynccontextmanager
async def bare(count: int) -> AsyncIterator[tuple[int, str]]:
    """That server in a process of its own."""
    argv = (sys.executable, __file__, "--serve-bare", "--count", str(count))
    async with process(*argv, ready="serving") as (pid, lines):
        yield pid, lines[-1].split()[1]


async def main(count: int, out: Path | None) -> None:
    """Each policy with few flows and with as many as there are requests."""
    report = machine()
    report += ["", f"## {count:,} requests that wait", "",
               ("| | flows | idle MiB | waiting MiB | added MiB | KiB a stream | of it the picker's | after MiB "
                "| CPU ms to wait | to leave |"),
               "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    print(*report[-2:], sep="\n")
    async with servers(2) as endpoints:
        rows: list[tuple[str, str, int, int | None]] = [
            (BARE, "", 100, None),
            ("headers alone", POLICIES[0], 100, 1),
        ]
        least_kib = 0.0
        rows += [(each, each, flows, None) for each in POLICIES for flows in (100, count)]
        for name, policy, num_flows, num_messages in rows:
            flags = ("--config-text", CONFIG % policy, "--max-concurrent-requests", str(2 * count))
            served = bare(count) if name == BARE else picker(endpoints, *flags)
            async with served as (pid, address):
                found = await wait_in(address, pid, count, num_flows, num_messages)
            kib = found["added"] * 1024 / (count - 100)
            least_kib = least_kib or kib
            report.append(
                f"| {name} | {num_flows:,} | {found['idle']:.0f} | {found['waiting']:.0f} | "
                f"{found['added']:.0f} | {kib:.1f} | {kib - least_kib:.1f} | {found['after']:.0f} | "
                f"{found['cpu']:.2f} | {found['leaving']:.2f} |"
            )
            print(report[-1], flush=True)
    report += ["", f"Load average at the end {load()}."]
    write(report, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the report here (Markdown)")
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_bare:
        asyncio.run(serve_bare(arguments.count))
    else:
        asyncio.run(main(arguments.count, arguments.out))
