"""Weft and its peers on the same work, in turns: `make bench-peers`.

Memory bandwidth on shared machines changes from one minute to the next, so engines are loaded side
by side, every repetition runs each of them, and only what stands beside each other is compared.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.peers.checkpoints import SHAPE_BY_NAME, SHAPES, Shape
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.environments import ROOT
from benchmarks.peers.workloads import WORKLOADS, Prompts, Workload
from weft.compute.native import measure_roofline

START_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine on one workload, once. Bandwidth is what the machine gave right before."""

    engine: str
    workload: str
    first_s: float
    total_s: float
    num_tokens: int
    read_bytes_per_s: float

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first; of one stream."""
        return (self.num_tokens - 1) / (self.total_s - self.first_s)

    def figure(self) -> float:
        """What the workload is judged by: tokens a second for W1 and W2, seconds for the others."""
        match self.workload:
            case "W1":
                return self.decode_rate
            case "W2":
                return self.num_tokens / self.total_s
            case _:
                return self.total_s


class Engine:
    """One engine in a child process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> "Engine":
        """Start and wait until the model is loaded."""
        log = (ROOT / f"{name.replace(' ', '-')}.log").open("w")
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | variables,
            limit=2**26,
        )
        log.close()
        engine = cls(name, process)
        about = await engine._read(START_TIMEOUT_S)
        while "engine" not in about:  # some libraries print while they are imported
            about = await engine._read(START_TIMEOUT_S)
        print(f"{name}: {about['engine']} {about['version']}", file=sys.stderr)
        return engine

    async def run(self, prompts: Prompts, max_tokens: int) -> dict[str, Any]:
        """All prompts at once."""
        assert self._process.stdin is not None
        line = json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n"
        self._process.stdin.write(line.encode())
        await self._process.stdin.drain()
        return await self._read(RUN_TIMEOUT_S)

    async def stop(self) -> None:
        """Close its stdin, and end it if that is not enough."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise RuntimeError(f"{self.name} took more than {timeout_s:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self.name} ended; see its log in {ROOT}")
        answer: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        return answer


async def measure(
    shape: Shape, engines: Sequence[Engine], workloads: Sequence[Workload], repetitions: int
) -> list[Measured]:
    """Every engine on every workload, in turns; the order turns round from one repetition to the next."""
    results: list[Measured] = []
    for repetition in range(repetitions + 1):  # the first warms up
        order = engines if repetition % 2 else list(reversed(engines))
        for workload in workloads:
            prompts = workload.prompts(shape.vocab, repetition)
            for engine in order:
                limits = measure_roofline("bfloat16")
                answer = await engine.run(prompts, workload.max_tokens)
                took = f"{workload.name} of {engine.name}: {answer['total_s']:.1f} s"
                print(took, file=sys.stderr)
                if repetition:
                    results.append(_measured(engine.name, workload, answer, limits.bytes_per_s))
        print(f"{shape.name}: repetition {repetition} of {repetitions}", file=sys.stderr)
    return results


def _measured(
    engine: str, workload: Workload, answer: dict[str, Any], read_bytes_per_s: float
) -> Measured:
    expected = workload.num_prompts * workload.max_tokens
    if answer["num_tokens"] != expected:
        raise RuntimeError(
            f"{engine}, {workload.name}: {answer['num_tokens']} tokens, not {expected}"
        )
    first_s = statistics.median(answer["first_s"])
    return Measured(engine, workload.name, first_s, answer["total_s"], expected, read_bytes_per_s)


def table(results: Sequence[Measured], engines: Sequence[str]) -> str:
    """Medians with their spread, and Weft beside each peer: the median of the ratios of each repetition."""
    lines = [
        "| workload | " + " | ".join(engines) + " | "
        + " | ".join(f"{engines[0]} / {peer}" for peer in engines[1:]) + " | read GB/s |",
        "|---" * (2 * len(engines) + 1) + "|",
    ]  # fmt: skip
    for workload in dict.fromkeys(result.workload for result in results):
        by_engine = {
            engine: [r for r in results if (r.engine, r.workload) == (engine, workload)]
            for engine in engines
        }
        cells = [_spread([r.figure() for r in runs]) for runs in by_engine.values()]
        ratios = [_ratio(by_engine[engines[0]], by_engine[peer]) for peer in engines[1:]]
        read = _spread([r.read_bytes_per_s / 1e9 for runs in by_engine.values() for r in runs])
        unit = "tok/s" if workload in ("W1", "W2") else "s"
        lines.append(f"| {workload}, {unit} | " + " | ".join([*cells, *ratios, read]) + " |")
        firsts = [_spread([1000 * r.first_s for r in runs]) for runs in by_engine.values()]
        gains = [_first_ratio(by_engine[engines[0]], by_engine[peer]) for peer in engines[1:]]
        lines.append(f"| {workload}, first token ms | " + " | ".join([*firsts, *gains, ""]) + " |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    middle, low, high = map(_figures, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low}–{high})"


def _figures(value: float) -> str:
    """Three figures, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ours: Sequence[Measured], theirs: Sequence[Measured]) -> str:
    """Over 1 is faster, whatever the unit."""
    is_rate = ours[0].workload in ("W1", "W2")
    pairs = zip(ours, theirs, strict=True)
    ratios = [a.figure() / b.figure() if is_rate else b.figure() / a.figure() for a, b in pairs]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f})"


def _first_ratio(ours: Sequence[Measured], theirs: Sequence[Measured]) -> str:
    ratios = [b.first_s / a.first_s for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f}"


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one shape after the other; the result is what the JSON file holds."""
    workloads = _chosen(arguments.workloads)
    found: dict[str, Any] = {"machine": machine(), "shapes": {}}
    for shape in (SHAPE_BY_NAME[name] for name in arguments.shapes):
        async with AsyncExitStack() as stack:
            engines = []
            commands = {name: ENGINES[name](shape) for name in arguments.engines}
            for name, command in commands.items():
                engine = await Engine.start(name, *command)
                stack.push_async_callback(engine.stop)
                engines.append(engine)
            results = await measure(shape, engines, workloads, arguments.repetitions)
        print(f"\n### {shape.name}\n\n{table(results, arguments.engines)}\n", flush=True)
        found["shapes"][shape.name] = [asdict(result) for result in results]
    return found


def _chosen(names: Sequence[str] | None) -> list[Workload]:
    """Workloads by name; "W3" is both of its kind."""
    found = {
        name: [w for w in WORKLOADS if name in (w.name, w.name.partition(" ")[0])]
        for name in names or [workload.name for workload in WORKLOADS if not workload.is_long]
    }
    for name, ones in found.items():
        if not ones:
            known = ", ".join(workload.name for workload in WORKLOADS)
            raise SystemExit(f"unknown workload {name!r}; there are: {known}")
    wanted = [workload for ones in found.values() for workload in ones]
    return [workload for workload in WORKLOADS if workload in wanted]


def machine() -> dict[str, Any]:
    """What was measured on."""
    names = {
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {"cpu": sorted(names), "cpus": os.cpu_count(), "system": platform.platform()}


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = ["weft", "vllm", "llama.cpp"]
    parser.add_argument("--engines", nargs="+", choices=ENGINES, metavar="ENGINE", default=default)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", default=names, choices=SHAPE_BY_NAME)
    parser.add_argument("--workloads", nargs="+", help="such as W1 W4; W1 to W4 if not given")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write every run as JSON")
    arguments = parser.parse_args()
    ROOT.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(run(arguments))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
