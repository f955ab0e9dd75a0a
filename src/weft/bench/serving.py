"""`weft bench serve`: sends a load to a server and reports the results."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from weft.bench.arrivals import arrival_times, check_traffic
from weft.bench.datasets import check_prompts, make_prompts
from weft.bench.drive import Run, RunBounds, drive
from weft.bench.options import Load, ReportOptions
from weft.bench.record import State
from weft.bench.report.page import run_page
from weft.bench.report.result import (
    check_report,
    details,
    result_path,
    to_document,
    write_document,
    write_file,
)
from weft.bench.report.table import lines
from weft.bench.targets.open_targets import open_target
from weft.core.observe.progress_bar import progress_bar
from weft.core.observe.terminal import say

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


async def serve(load: Load) -> int:
    """Runs the load, prints and saves the results, and returns the exit status. Invalid options are refused before a
    request is sent.
    """
    check_prompts(load.prompts)
    check_traffic(load.traffic)
    check_report(load.report)
    run, model, is_interrupted = await _measure(load)
    document = to_document(run, model, load)
    say("\n".join(lines(document, load.report.table_words)))
    _save(load.report, document, run)
    return exit_status(run, is_interrupted=is_interrupted)


@contextmanager
def under_way(
    num: int, time_limit_s: float, max_concurrency: int | None = None, *, is_silent: bool
) -> Iterator[tuple[RunBounds, Callable[[], None]]]:
    """Yields the limits of a run, and a function that is called at the end of each request. The function moves a
    progress bar unless `is_silent`.
    """
    with _stopping() as stop, progress_bar(num, is_wanted=not is_silent) as advance:
        yield RunBounds(stop, time_limit_s, max_concurrency), advance


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """Yields an event that the first Ctrl-C or SIGTERM sets. A second signal ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def exit_status(run: Run, *, is_interrupted: bool) -> int:
    """Prints failures and returns the exit status: not 0 if no request was completed, or if the run was interrupted."""
    failed = run.in_state(State.FAILED)
    num_cancelled = len(run.in_state(State.CANCELLED)) + run.num_unsent
    if failed:
        say(f"{len(failed)} requests failed; the first: {failed[0].error}", file=sys.stderr)
    if run.is_cut_short:
        say(f"cut short: {num_cancelled} unfinished requests do not count", file=sys.stderr)
    if is_interrupted:
        return EXIT_INTERRUPTED
    return 0 if run.in_state(State.COMPLETED) else EXIT_FAILED


async def _measure(load: Load) -> tuple[Run, str, bool]:
    """Runs the load; returns the run, the model's name, and True if the run was interrupted."""
    rng = np.random.default_rng(load.prompts.seed)
    ignore_eos = load.target.ignore_eos or load.prompts.dataset_name == "random"
    traffic = load.traffic
    async with open_target(load.target, ignore_eos=ignore_eos) as opened:
        prompts = make_prompts(load.prompts, opened.maker, rng)
        at_s = arrival_times(traffic, len(prompts), rng).tolist()
        warming = [prompts[0]] * traffic.num_warmups
        limits = (traffic.time_limit, traffic.max_concurrency)
        with under_way(len(prompts), *limits, is_silent=traffic.disable_tqdm) as (bounds, advance):
            await drive(opened.target, warming, [0.0] * len(warming), bounds)
            run = await drive(opened.target, prompts, at_s, bounds, advance)
    return run, opened.target.model, bounds.stop.is_set()


def _save(report: ReportOptions, document: dict[str, object], run: Run) -> None:
    if report.html is not None:
        write_file(report.html, run_page(document, run).encode())
        say(f"page: {report.html}")
    if report.save_result or report.append_result:
        path = result_path(document, report)
        saved = {**document, **details(run)} if report.save_detailed else document
        write_document(path, saved, is_appended=report.append_result)
        say(f"result: {path}")
