"""`weft bench sweep serve`: runs `bench serve` for every combination of server settings and load settings."""

import contextlib
import csv
import itertools
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from weft.bench.options import SweepOptions
from weft.bench.report.page import page
from weft.bench.report.plots import Line, line_chart
from weft.bench.report.result import Document, read_documents, write_file
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say

EXIT_FAILED = 1
_STOP_TIMEOUT_S = 60.0
_AXES = (
    ("output_throughput", "output tokens/s", "median_ttft_ms", "median TTFT, ms"),
    ("output_throughput", "output tokens/s", "median_tpot_ms", "median TPOT, ms"),
    ("request_throughput", "requests/s", "p99_ttft_ms", "p99 TTFT, ms"),
)
_SHOWN = ("request_throughput", "output_throughput", "median_ttft_ms", "median_tpot_ms", "failed")


@dataclass(frozen=True, slots=True)
class Setting:
    """A set of flags from a parameter file."""

    name: str
    flags: Mapping[str, Any]

    def argv(self) -> list[str]:
        """Returns the flags as command-line words: true becomes the flag, false its --no- form, null no flag."""
        found: list[str] = []
        for key, value in self.flags.items():
            flag = "--" + key.replace("_", "-")
            match value:
                case None:
                    pass
                case True:
                    found.append(flag)
                case False:
                    found.append(flag.replace("--", "--no-", 1))
                case list():
                    found += [flag, *map(str, value)]
                case dict():
                    found += [flag, msgspec.json.encode(value).decode()]
                case _:
                    found += [flag, str(value)]
        return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A run in the summary table."""

    server: str
    load: str
    run: int
    document: Document


def sweep(options: SweepOptions) -> int:
    """Runs all combinations, one after another; returns 1 if a run failed. After Ctrl-C, the results so far remain."""
    if options.num_runs < 1:
        raise ConfigError("--num-runs must be at least 1")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that Ctrl-C stops the servers
    servers = read_settings(options.serve_params, "serve")
    loads = read_settings(options.bench_params, "bench")
    if options.serve_cmd is None and options.serve_params is not None:
        raise ConfigError("--serve-params needs --serve-cmd")
    name = options.experiment_name or datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    directory = options.output_dir / name
    is_good = True
    try:
        for server in servers:
            is_good = _measure_server(options, server, loads, directory) and is_good
    finally:
        if not options.dry_run:
            summarise(directory, [(s, load) for s in servers for load in loads], options.num_runs)
    return 0 if is_good else EXIT_FAILED


def read_settings(path: Path | None, kind: str) -> list[Setting]:
    """Returns the sets of flags in a file: a list of objects, which are named by their contents, or an object of named
    objects.
    """
    if path is None:
        return [Setting(kind, {})]
    try:
        found = msgspec.json.decode(
            path.read_bytes(), type=list[dict[str, Any]] | dict[str, dict[str, Any]]
        )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: must be a JSON list of objects, or a JSON object of objects ({error})"
        ) from error
    if isinstance(found, dict):
        return [Setting(_file_name(name), flags) for name, flags in found.items()]
    named = (",".join(f"{key}={value}" for key, value in row.items()) or kind for row in found)
    return [Setting(_file_name(name), row) for name, row in zip(named, found, strict=True)]


def summarise(
    directory: Path, combinations: Sequence[tuple[Setting, Setting]], num_runs: int
) -> None:
    """Summarizes the existing results: prints a table, and writes `summary.csv` and `summary.html`."""
    rows = []
    for server, load in combinations:
        for run in range(num_runs):
            path = _result_path(directory, server, load, run)
            if path.is_file():
                rows.append(_Row(server.name, load.name, run, read_documents(path)[-1]))
    if not rows:
        return
    keys = [key for key, value in rows[0].document.items() if isinstance(value, int | float)]
    with (directory / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["serve", "bench", "run", *keys])
        for row in rows:
            figures = (row.document.get(key) for key in keys)
            writer.writerow([row.server, row.load, row.run, *figures])
    summary = page(f"Sweep {directory.name}", _plots(rows))
    write_file(directory / "summary.html", summary.encode())
    for row in rows:
        shown = "  ".join(f"{k} {row.document[k]:.2f}" for k in _SHOWN if k in row.document)
        say(f"{row.server}  {row.load}  run {row.run}: {shown}")
    say(f"summary: {directory / 'summary.csv'} and .html")


def _measure_server(
    options: SweepOptions, server: Setting, loads: Sequence[Setting], directory: Path
) -> bool:
    runs = [
        (load, run, _result_path(directory, server, load, run))
        for load, run in itertools.product(loads, range(options.num_runs))
    ]
    if options.resume:
        runs = [found for found in runs if not found[2].is_file()]
    if not runs:
        return True
    is_good = True
    with _serving(options, server):
        for load, _, path in runs:
            argv = [
                *shlex.split(options.bench_cmd),
                *load.argv(),
                *(
                    "--save-result",
                    "--result-dir",
                    str(path.parent),
                    "--result-filename",
                    path.name,
                ),
            ]
            if options.serve_cmd is not None:
                argv += ["--ready-check-timeout-sec", f"{options.server_ready_timeout:g}"]
            is_good = _run(argv, options) and is_good
    return is_good


@contextlib.contextmanager
def _serving(options: SweepOptions, server: Setting) -> Iterator[None]:
    if options.serve_cmd is None:
        yield
        return
    argv = [*shlex.split(options.serve_cmd), *server.argv()]
    say(shlex.join(argv))
    if options.dry_run:
        yield
        return
    with _start(argv, options) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _run(argv: Sequence[str], options: SweepOptions) -> bool:
    say(shlex.join(argv))
    if options.dry_run:
        return True
    with _start(argv, options) as process:
        return process.wait() == 0


def _start(argv: Sequence[str], options: SweepOptions) -> subprocess.Popen[bytes]:
    """Starts a server process. `weft` as the first word stands for this installation, even if it is not on the PATH."""
    if argv[0] == "weft":
        argv = [sys.executable, "-m", "weft.cli.main", *argv[1:]]
    output = None if options.show_stdout else subprocess.DEVNULL
    try:
        return subprocess.Popen(argv, stdout=output)  # noqa: S603 - the user's own commands
    except OSError as error:
        raise ConfigError(f"cannot start {argv[0]}: {error.strerror}") from error


def _result_path(directory: Path, server: Setting, load: Setting, run: int) -> Path:
    return directory / f"{server.name}-{load.name}" / f"run={run}.json"


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", name)[:200] or "-"


def _plots(rows: Sequence[_Row]) -> Iterator[str]:
    """Yields plots of means over runs. A line connects the results of one server under all loads."""
    for x_key, x_label, y_key, y_label in _AXES:
        lines = []
        for name in dict.fromkeys(row.server for row in rows):
            loads = dict.fromkeys(row.load for row in rows)
            means = [_mean_point(rows, (name, load), (x_key, y_key)) for load in loads]
            points = sorted(point for point in means if point is not None)
            if points:
                lines.append(Line(name, points, has_dots=True))
        if lines:
            yield line_chart(f"{y_label} over {x_label}", x_label, y_label, lines)


def _mean_point(
    rows: Sequence[_Row], names: tuple[str, str], keys: tuple[str, str]
) -> tuple[float, float] | None:
    found = [
        [float(row.document[key]) for key in keys]
        for row in rows
        if (row.server, row.load) == names and all(key in row.document for key in keys)
    ]
    return (fmean(x for x, _ in found), fmean(y for _, y in found)) if found else None
