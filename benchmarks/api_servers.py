"""Events a second before one engine, by number of API servers, and which process they keep busy.

`python benchmarks/api_servers.py`; README.md says how to read the table.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve import MODELS, WAYS, Load, load, server
from benchmarks.serve_load import Job

_API_SERVER = "weft.cli.serving.api_server"
_ENGINE = "weft.engine.process"


def cpu_s(pid: int) -> dict[str, list[float]]:
    """Processor time of each process so far, by what it is."""
    first = psutil.Process(pid)
    found: dict[str, list[float]] = {"first": [], _API_SERVER: [], _ENGINE: []}
    for process in (first, *first.children()):
        words = process.cmdline()
        kind = next((name for name in (_API_SERVER, _ENGINE) if name in words), "first")
        times = process.cpu_times()
        found[kind].append(times.user + times.system)
    return found


def measure(clients: Load, count: int, arguments: argparse.Namespace, seed: int) -> str:
    """One row."""
    dice = random.Random(seed)
    flags = ("--stream-interval-ms=0", f"--api-server-count={count}")
    with server(MODELS[arguments.model], *flags) as served:
        job = Job(
            way=WAYS[arguments.way],
            port=served.http_port,
            model="m",
            prompts=[[dice.randrange(256) for _ in range(32)] for _ in range(arguments.clients)],
            max_tokens=arguments.tokens,
            num_clients=arguments.clients,
        )
        clients.run(msgspec.structs.replace(job, max_tokens=16))
        before, began = cpu_s(served.pid), time.monotonic()
        report = clients.run(job)
        seconds, after = time.monotonic() - began, cpu_s(served.pid)
    used = {
        kind: [late - early for early, late in zip(before[kind], after[kind], strict=True)]
        for kind in before
    }
    fronts = used[_API_SERVER] or used["first"]
    supervisor = used["first"][0] if used[_API_SERVER] else 0.0
    per_event = 1e6 / report.num_messages
    busiest = max(*fronts, supervisor) if supervisor else max(fronts)
    return (
        f"| {count} | {report.num_messages / seconds:.0f} | {sum(fronts) * per_event:.0f} "
        f"| {supervisor * per_event:.0f} | {sum(used[_ENGINE]) * per_event:.0f} "
        f"| {busiest * per_event:.0f} | {report.num_messages / busiest:.0f} |"
    )


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2, help="of all counts, in turn")
    parser.add_argument("--model", choices=MODELS, default="paced")
    parser.add_argument("--way", choices=WAYS, default="HTTP, completions")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    arguments = parser.parse_args()
    print(
        "| API servers | events/s | of API servers, µs of CPU an event | of the supervisor | of the engine "
        "| of the busiest process in front | events/s that it bears |\n|---|---|---|---|---|---|---|"
    )
    with load() as clients:
        for seed in range(arguments.rounds):
            for count in arguments.counts:
                print(measure(clients, count, arguments, seed), flush=True)


if __name__ == "__main__":
    main()
