"""What requests that wait in the picker cost: `python benchmarks/route_queue.py`.

Ten thousand ext_proc streams wait at once in a real `weft epp` over loopback, each with its body of a kilobyte
and a flow of its own or of a hundred. The picker's memory is read before, while they wait, and after they have
left; the CPU of the picker is what it took to have them wait, a request. In the first row streams sent their
headers only: that much is not of flow control, but gRPC's and of a request's first half.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.route import SCORERS, chat, load, machine, messages, write
from benchmarks.route_processes import picker, servers
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub

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


async def main(count: int, out: Path | None) -> None:
    """Each policy with few flows and with as many as there are requests."""
    report = machine()
    report += ["", f"## {count:,} requests that wait", "",
               "| fairness | flows | idle MiB | waiting MiB | added MiB | after MiB | CPU ms to wait | to leave |",
               "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    print(*report[-2:], sep="\n")
    async with servers(2) as endpoints:
        rows: list[tuple[str, str, int, int | None]] = [("headers alone", POLICIES[0], 100, 1)]
        rows += [(each, each, flows, None) for each in POLICIES for flows in (100, count)]
        for name, policy, num_flows, num_messages in rows:
            flags = ("--config-text", CONFIG % policy, "--max-concurrent-requests", str(2 * count))
            async with picker(endpoints, *flags) as (pid, address):
                found = await wait_in(address, pid, count, num_flows, num_messages)
            report.append(
                f"| {name} | {num_flows:,} | {found['idle']:.0f} | {found['waiting']:.0f} | "
                f"{found['added']:.0f} | {found['after']:.0f} | {found['cpu']:.2f} | {found['leaving']:.2f} |"
            )
            print(report[-1], flush=True)
    report += ["", f"Load average at the end {load()}."]
    write(report, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the report here (Markdown)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.count, arguments.out))
