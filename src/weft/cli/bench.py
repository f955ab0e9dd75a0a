"""`weft bench`: flags to options. What measures is imported when it is called for.

numpy and the clients take longer to import than `--help` may take.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, Parameter

from weft.bench.options import (
    CompareOptions,
    LatencyOptions,
    OfflineOptions,
    PromptOptions,
    ReportOptions,
    SweepOptions,
    TargetOptions,
    TrafficOptions,
)
from weft.cli.flags import as_flags, pick
from weft.core.config import EngineOptions

if TYPE_CHECKING:  # code reads them where they are declared: see `pick`
    ServeFlags = object
    ThroughputFlags = object
    LatencyFlags = object
    SweepFlags = object
    CompareFlags = object
else:
    ServeFlags = as_flags(TargetOptions, PromptOptions, TrafficOptions, ReportOptions)
    ThroughputFlags = as_flags(OfflineOptions, PromptOptions, EngineOptions)
    LatencyFlags = as_flags(OfflineOptions, LatencyOptions, EngineOptions)
    SweepFlags = as_flags(SweepOptions)
    CompareFlags = as_flags(CompareOptions)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchServeOptions(ServeFlags):
    """Flags of `weft bench serve`."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ThroughputBenchOptions(ThroughputFlags):
    """Flags of `weft bench throughput`."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LatencyBenchOptions(LatencyFlags):
    """Flags of `weft bench latency`."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SweepBenchOptions(SweepFlags):
    """Flags of `weft bench sweep serve`."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompareBenchOptions(CompareFlags):
    """Flags of `weft bench compare`."""


def serve(*, options: BenchServeOptions = BenchServeOptions()) -> int:
    """Send a load to a server and time its answers: TTFT, TPOT, ITL, E2EL, throughput, goodput.

    The exit status is 1 if every request failed. For example:

    weft bench serve --num-prompts 100 --request-rate 4 --goodput ttft:500 tpot:50 --html run.html
    """
    serving = import_module("weft.bench.serving")
    load = serving.Load(
        pick(options, TargetOptions),
        pick(options, PromptOptions),
        pick(options, TrafficOptions),
        pick(options, ReportOptions),
    )
    return _run(serving.serve(load))


def throughput(*, options: ThroughputBenchOptions = ThroughputBenchOptions()) -> int:
    """Answer many prompts at once, in an engine of this process or on a server, and count tokens.

    For example:

    weft bench throughput --model embedded:tiny --num-prompts 64 --input-len 128
    """
    offline = pick(options, OfflineOptions)
    work = import_module("weft.bench.offline").throughput(
        offline, pick(options, PromptOptions), pick(options, EngineOptions)
    )
    return _run(work)


def latency(*, options: LatencyBenchOptions = LatencyBenchOptions()) -> int:
    """Time one batch until its last token, again and again.

    For example:

    weft bench latency --model embedded:tiny --batch-size 4 --num-iters 10
    """
    offline = pick(options, OfflineOptions)
    work = import_module("weft.bench.offline").latency(
        offline, pick(options, LatencyOptions), pick(options, EngineOptions)
    )
    return _run(work)


def sweep_serve(*, options: SweepBenchOptions = SweepBenchOptions()) -> int:
    """Run `bench serve` under every combination of settings, with a server started for each.

    For example, where rates.json is [{"request_rate": 1}, {"request_rate": 4}]:

    weft bench sweep serve --serve-cmd "weft serve" --bench-params rates.json
    """
    status: int = import_module("weft.bench.sweep").sweep(pick(options, SweepOptions))
    return status


def compare(a: Path, b: Path, *, options: CompareBenchOptions = CompareBenchOptions()) -> int:
    """Say how the results of B differ from those of A, with intervals of the bootstrap.

    For example:

    weft bench compare before.json after.json

    Parameters
    ----------
    a
        Results of `weft bench serve --save-result --save-detailed`, or of vLLM's.
    b
        The others.
    """
    status: int = import_module("weft.bench.compare").compare(a, b, pick(options, CompareOptions))
    return status


def _run(work: Coroutine[Any, Any, int]) -> int:
    uvloop = import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _make_app() -> App:
    """The command with those below it."""
    app = App(name="bench", help="Measure a server or an engine under load.")
    app.command(serve)
    app.command(throughput)
    app.command(latency)
    sweep = App(name="sweep", help="Measure under every combination of settings.")
    sweep.command(sweep_serve, name="serve")
    app.command(sweep)
    app.command(compare)
    return app


app = _make_app()  # loaded by name, when it is called
