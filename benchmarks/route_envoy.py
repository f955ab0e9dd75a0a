"""Times the picker behind a real Envoy: `python benchmarks/route_envoy.py [--runs N] [--part PART]`.

HTTP through Envoy, with one thread, to servers that answer at once: 200 tokens in, 100 events out. Prints processor
time a request, of the picker and of Envoy. Pickers run in turns, back and forth, so that other work on the machine
meets them all. Parts:

- `features`: 10 endpoints; the picker plain, with responses followed, and with responses, flow control and traces;
- `endpoints`: 1,000 endpoints; plain, and with everything on. Needs `ulimit -n 16384`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.route import FLOW_CONTROLS, SCORERS, chat, collector
from benchmarks.route_processes import Result, envoy, measure, picker, servers
from weft.cli.up.envoy import EnvoyPlan

LANES = (1, 8)
COUNTS = {1: 300, 8: 800}
ALL = "with responses, flow control and traces"
PICKERS: Mapping[str, tuple[str, ...]] = {
    "plain": ("--config-text", SCORERS),
    "with responses": ("--config-text", SCORERS, "--track-responses"),
    ALL: ("--config-text", FLOW_CONTROLS["with"], "--track-responses", "--tracing"),
}


class Connection:
    """One HTTP/1.1 connection; the answers are chunked."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> None:
        """One chat, to the end of its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: model\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"an answer was not 200: {head!r}")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)


async def through(port: int, *, lanes: int, pids: dict[str, int]) -> Result:
    """Chats of 200 tokens, 100 events back."""
    free = [Connection(port) for _ in range(lanes)]

    async def one(number: int) -> None:
        connection = free.pop()
        await connection.post(chat(number, 200))
        free.append(connection)

    return await measure(one, count=COUNTS[lanes], lanes=lanes, pids=pids)


async def in_turns(
    title: str, num_endpoints: int, flags: Mapping[str, tuple[str, ...]], runs: int
) -> None:
    """Prints a table: pickers with these flags, each behind an Envoy of its own."""
    print(f"\n{title}\n\n| picker | connections | picker, ms a request | Envoy, ms | requests/s |")
    print("| --- | --- | --- | --- | --- |")
    async with AsyncExitStack() as stack:
        endpoints = await stack.enter_async_context(servers(num_endpoints))
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = await stack.enter_async_context(collector())
        workers = [(host, int(port)) for host, port in (name.split(":") for name in endpoints)]
        workers = workers[:10]  # for requests without a picker; Envoy goes wherever the picker says
        plan = EnvoyPlan(picker=("127.0.0.1", 1), grpc_workers=workers, http_workers=workers)
        started: dict[str, tuple[int, dict[str, int]]] = {}
        for name, argv in flags.items():
            epp, address = await stack.enter_async_context(picker(endpoints, *argv))
            host, _, epp_port = address.partition(":")
            planned = replace(plan, picker=(host, int(epp_port)))
            pid, port = await stack.enter_async_context(envoy(planned))
            started[name] = port, {"picker": epp, "envoy": pid}
        results: dict[tuple[str, int], list[Result]] = {}
        for run in range(runs):
            for name in list(started) if run % 2 == 0 else reversed(started):
                port, pids = started[name]
                for lanes in LANES:
                    result = await through(port, lanes=lanes, pids=pids)
                    results.setdefault((name, lanes), []).append(result)
    for (name, lanes), found in results.items():
        shown = " | ".join(
            _spread([result.cpu_ms[key] for result in found]) for key in ("picker", "envoy")
        )
        rate = median(result.per_second for result in found)
        print(f"| {name} | {lanes} | {shown} | {rate:.0f} |", flush=True)


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


async def main(parts: list[str], runs: int) -> None:
    """Measures and prints."""
    if "features" in parts:
        await in_turns("10 endpoints", 10, PICKERS, runs)
    if "endpoints" in parts:
        flags = {name: argv for name, argv in PICKERS.items() if name != "with responses"}
        await in_turns("1,000 endpoints", 1000, flags, runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--part", nargs="+", choices=["features", "endpoints"], default=["features"]
    )
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.part, arguments.runs))
