"""`weft bench`: converts flags to options. The benchmarks are imported when a command runs.

numpy and the clients take longer to import than `--help` may take.
"""

from collections.abc import Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.bench.options import (
    CompareOptions,
    LatencyOptions,
    Load,
    OfflineOptions,
    ReportOptions,
    SweepOptions,
    TargetOptions,
    TrafficOptions,
)
from weft.bench.prompt_options import PromptOptions
from weft.cli.arguments.flags import flags, pick
from weft.cli.commands import call
from weft.core.config.engine_options import EngineOptions


@flags(TargetOptions, PromptOptions, TrafficOptions, ReportOptions)
class BenchServeOptions:
    """Flags of `weft bench serve`."""


@flags(OfflineOptions, PromptOptions, EngineOptions)
class ThroughputBenchOptions:
    """Flags of `weft bench throughput`."""


@flags(OfflineOptions, LatencyOptions, EngineOptions)
class LatencyBenchOptions:
    """Flags of `weft bench latency`."""


@flags(SweepOptions)
class SweepBenchOptions:
    """Flags of `weft bench sweep serve`."""


@flags(CompareOptions)
class CompareBenchOptions:
    """Flags of `weft bench compare`."""


def serve(*, options: BenchServeOptions = BenchServeOptions()) -> int:
    """Benchmark a server under load: TTFT, TPOT, ITL, E2EL, throughput, goodput."""
    load = Load(
        pick(options, TargetOptions),
        pick(options, PromptOptions),
        pick(options, TrafficOptions),
        pick(options, ReportOptions),
    )
    return _run(import_module("weft.bench.serving").serve(load))


def throughput(*, options: ThroughputBenchOptions = ThroughputBenchOptions()) -> int:
    """Benchmark offline throughput: many prompts at once, in this process or on a server."""
    offline = pick(options, OfflineOptions)
    work = import_module("weft.bench.offline").throughput(
        offline, pick(options, PromptOptions), pick(options, EngineOptions)
    )
    return _run(work)


def latency(*, options: LatencyBenchOptions = LatencyBenchOptions()) -> int:
    """Benchmark the latency of one batch, repeatedly."""
    offline = pick(options, OfflineOptions)
    work = import_module("weft.bench.offline").latency(
        offline, pick(options, LatencyOptions), pick(options, EngineOptions)
    )
    return _run(work)


def sweep_serve(*, options: SweepBenchOptions = SweepBenchOptions()) -> int:
    """Run `bench serve` under every combination of settings, with a server started for each."""
    return call("weft.bench.sweep:sweep", pick(options, SweepOptions))


def compare(a: Path, b: Path, *, options: CompareBenchOptions = CompareBenchOptions()) -> int:
    """Say how the results of B differ from those of A, with intervals of the bootstrap.

    Parameters
    ----------
    a
        Results of `weft bench serve --save-result --save-detailed`, or of vLLM's.
    b
        The others.
    """
    return call("weft.bench.report.compare:compare", a, b, pick(options, CompareOptions))


def _run(work: Coroutine[Any, Any, int]) -> int:
    status: int = import_module("uvloop").run(work)
    return status
