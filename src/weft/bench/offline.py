"""`weft bench throughput` and `weft bench latency`: send all requests at once, or one batch after another, to an engine
in this process or to a server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from weft.bench.datasets import check_prompts, make_prompts
from weft.bench.drive import Run, drive
from weft.bench.options import LatencyOptions, OfflineOptions
from weft.bench.prompt_options import PromptOptions
from weft.bench.record import Prompt, State
from weft.bench.report.result import write_document
from weft.bench.serving import exit_status, under_way
from weft.bench.targets.open_targets import Opened, open_target
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say
from weft.core.values.declare import refuse_unused

_OF_SERVERS = ("base_url", "api_key")
_OF_ENGINES = tuple(name for name in EngineOptions.__struct_fields__ if name != "tokenizer")
_PERCENTILES = (10, 25, 50, 75, 90, 99)


async def throughput(offline: OfflineOptions, prompts: PromptOptions, engine: EngineOptions) -> int:
    """Sends all requests at once and reports the throughput, with the JSON keys of `vllm bench throughput`; returns the
    exit status.
    """
    check_prompts(prompts)
    rng = np.random.default_rng(prompts.seed)
    async with _opened(offline, engine) as opened:
        made = make_prompts(prompts, opened.maker, rng)
        is_silent = offline.disable_tqdm
        with under_way(len(made), offline.time_limit, is_silent=is_silent) as (bounds, advance):
            run = await drive(opened.target, made, [0.0] * len(made), bounds, advance)
    document = _throughput_document(run)
    say(
        f"Throughput: {document['requests_per_second']:.2f} requests/s, "
        f"{document['tokens_per_second']:.2f} total tokens/s, "
        f"{document['output_tokens_per_second']:.2f} output tokens/s"
    )
    say(f"Total num prompt tokens: {document['total_prompt_tokens']}")
    say(f"Total num output tokens: {document['total_output_tokens']}")
    if offline.output_json is not None:
        write_document(offline.output_json, document)
    return exit_status(run, is_interrupted=bounds.stop.is_set())


async def latency(offline: OfflineOptions, batch: LatencyOptions, engine: EngineOptions) -> int:
    """Measures the time from the start of a batch to its last token, repeatedly; returns the exit status. Each batch
    has new prompts, because a prefix cache would contain the former ones.

    The JSON keys are those of `vllm bench latency`.
    """
    _check_latency(batch)
    rng = np.random.default_rng(batch.seed)
    num_all = batch.num_iters_warmup + batch.num_iters
    latencies: list[float] = []
    run = Run([], 0.0)
    async with _opened(offline, engine) as opened:
        is_silent = offline.disable_tqdm
        with under_way(num_all, offline.time_limit, is_silent=is_silent) as (bounds, advance):
            for number in range(num_all):
                made = [
                    Prompt(opened.maker.make(batch.input_len, rng), batch.output_len)
                    for _ in range(batch.batch_size)
                ]
                run = await drive(opened.target, made, [0.0] * len(made), bounds)
                if run.is_cut_short or run.in_state(State.FAILED):
                    break
                if number >= batch.num_iters_warmup:
                    latencies.append(run.duration_s)
                advance()
    status = exit_status(run, is_interrupted=bounds.stop.is_set())
    if latencies:
        _report_latency(latencies, offline)
    return status or int(bool(run.in_state(State.FAILED)))


@asynccontextmanager
async def _opened(offline: OfflineOptions, engine: EngineOptions) -> AsyncIterator[Opened]:
    where = f"with --backend {offline.backend}"
    if offline.backend == "engine":
        refuse_unused(offline, OfflineOptions(), _OF_SERVERS, where)
        if offline.model is not None:
            engine = msgspec.structs.replace(engine, model=offline.model)
        engines = import_module("weft.bench.targets.local_engine")  # it imports the engine
        async with engines.open_engine(engine, offline.temperature) as opened:
            yield opened
    else:
        refuse_unused(engine, EngineOptions(), _OF_ENGINES, where)
        async with open_target(offline.target(engine.tokenizer), ignore_eos=True) as opened:
            yield opened


def _throughput_document(run: Run) -> dict[str, Any]:
    done = run.in_state(State.COMPLETED)
    num_in = sum(record.input_tokens for record in done)
    num_out = sum(record.output_tokens for record in done)
    return {
        "elapsed_time": run.duration_s,
        "num_requests": len(done),
        "total_num_tokens": num_in + num_out,
        "requests_per_second": len(done) / run.duration_s,
        "tokens_per_second": (num_in + num_out) / run.duration_s,
        "total_prompt_tokens": num_in,
        "total_output_tokens": num_out,
        "output_tokens_per_second": num_out / run.duration_s,
    }


def _check_latency(batch: LatencyOptions) -> None:
    for name in ("input_len", "output_len", "batch_size", "num_iters"):
        if getattr(batch, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")


def _report_latency(latencies: list[float], offline: OfflineOptions) -> None:
    found = np.percentile(latencies, _PERCENTILES).tolist()
    percentiles = {str(p): value for p, value in zip(_PERCENTILES, found, strict=True)}
    mean, deviation = float(np.mean(latencies)), float(np.std(latencies))
    say(f"Avg latency: {mean:.4f} seconds")
    say(f"Std latency: {deviation:.4f} seconds")
    for percentile, value in percentiles.items():
        say(f"{percentile}% percentile latency: {value:.4f} seconds")
    if offline.output_json is not None:
        write_document(
            offline.output_json,
            {
                "avg_latency": mean,
                "std_latency": deviation,
                "latencies": latencies,
                "percentiles": percentiles,
            },
        )
