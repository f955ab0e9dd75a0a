"""Computes the metrics of a run from the measurements of its requests, with vLLM's definitions.

Formulas: `calculate_metrics` of vLLM (vllm/benchmarks/serve.py). For n completed requests in a run of T seconds, from
the first send to the last answer:

- TTFT: time from sending a request to its first message with tokens. E2EL: time to its last such message.
- ITL: time between two successive messages with tokens of an answer, over all answers. A message may have several
  tokens.
- TPOT: (E2EL - TTFT) / (output tokens - 1), of answers with at least two tokens.
- Request throughput: n / T. Output throughput: output tokens / T. Total token throughput: prompt and output tokens / T.
- Goodput: requests that meet all given objectives of TTFT, TPOT and E2EL, / T. An answer of one token counts with a
  TPOT of 0.
- Percentiles are numpy's, linear between the two nearest values; 0 without values.

Weft differs from vLLM in two points. Messages that only begin or end an answer do not count
(`weft.bench.targets.http_target`). For the peak output throughput, the tokens of an answer are distributed evenly over
its messages; vLLM counts each message as one token.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bench.drive import Run
from weft.bench.record import Record, State
from weft.core.errors import ConfigError

OBJECTIVES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that has one or several values per request, in seconds."""

    key: str
    name: str
    title: str
    values: Callable[[Record], Sequence[float]]


def _tpot(record: Record) -> Sequence[float]:
    return () if record.tpot_s is None else (record.tpot_s,)


METRICS = {
    metric.key: metric
    for metric in (
        Metric("ttft", "TTFT", "Time to first token", lambda r: (r.ttft_s,)),
        Metric("tpot", "TPOT", "Time per output token (excluding the first)", _tpot),
        Metric("itl", "ITL", "Inter-token latency", lambda r: r.gaps_s),
        Metric("e2el", "E2EL", "End-to-end latency", lambda r: (r.latency_s,)),
        Metric("client_queue_time", "queue", "Client queue time", lambda r: (r.queue_s,)),
        Metric(
            "e2el_including_client_queue",
            "E2EL + queue",
            "End-to-end latency including client queue time",
            lambda r: (r.latency_s + r.queue_s,),
        ),
    )
}


def parse_goodput(pairs: Iterable[str]) -> dict[str, float]:
    """Returns the objectives in seconds, by metric. Raises `ConfigError`."""
    objectives = {}
    for pair in pairs:
        name, _, text = pair.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in OBJECTIVES or not value >= 0:
            allowed = ", ".join(OBJECTIVES)
            raise ConfigError(
                f"--goodput {pair}: must be NAME:MILLISECONDS, where NAME is one of {allowed}"
            )
        objectives[name] = value / 1000
    return objectives


def parse_metrics(text: str) -> list[Metric]:
    """Returns the metrics in a comma-separated list. Raises `ConfigError`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise ConfigError(f"--percentile-metrics {unknown[0]}: must be one of {', '.join(METRICS)}")
    return [METRICS[name] for name in names]


def parse_percentiles(text: str) -> list[float]:
    """Returns the percentiles in a comma-separated list. Raises `ConfigError`."""
    try:
        percentiles = [float(part) for part in text.split(",")]
    except ValueError:
        percentiles = [math.nan]
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise ConfigError(f"--metric-percentiles {text}: must be numbers from 0 to 100")
    return percentiles


def totals(run: Run, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Returns the counts and rates of a run, with vLLM's names."""
    done = run.in_state(State.COMPLETED)
    seconds = run.duration_s
    num_in, num_out = (
        (sum(counts) for counts in zip(*map(_tokens, done), strict=True)) if done else (0, 0)
    )
    num_good = sum(_is_good(record, objectives) for record in done)
    return {
        "duration": seconds,
        "completed": len(done),
        "failed": len(run.in_state(State.FAILED)),
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "request_throughput": len(done) / seconds,
        "request_goodput": num_good / seconds if objectives else None,
        "output_throughput": num_out / seconds,
        "total_token_throughput": (num_in + num_out) / seconds,
        "max_output_tokens_per_s": float(tokens_by_second(done).max(initial=0.0)),
        "max_concurrent_requests": max((n for _, n in concurrency(done)), default=0),
    }


def spread(
    metric: Metric, records: Iterable[Record], percentiles: Sequence[float]
) -> dict[str, float]:
    """Returns the mean, median, standard deviation and percentiles of a metric in milliseconds, with vLLM's names."""
    values = [value for record in records for value in metric.values(record)]
    found = np.array(values or [0.0]) * 1000
    key = metric.key
    result = {
        f"mean_{key}_ms": float(found.mean()),
        f"median_{key}_ms": float(np.median(found)),
        f"std_{key}_ms": float(found.std()),
    }
    for percentile in percentiles:
        result[f"p{percentile:g}_{key}_ms"] = float(np.percentile(found, percentile))
    return result


def message_times(record: Record) -> NDArray[np.float64]:
    """Returns the arrival time of each message with tokens."""
    return record.started_at + record.ttft_s + np.cumsum([0.0, *record.gaps_s])


def tokens_by_second(records: Sequence[Record]) -> NDArray[np.float64]:
    """Returns the number of output tokens in each second after the first request was sent."""
    if not records:
        return np.zeros(0)
    began = min(record.started_at for record in records)
    times = [message_times(record) - began for record in records]
    weights = [
        np.full(len(t), r.output_tokens / len(t)) for t, r in zip(times, records, strict=True)
    ]
    seconds = np.concatenate(times).astype(np.int64)
    return np.bincount(seconds, np.concatenate(weights)).astype(np.float64)


def concurrency(records: Sequence[Record]) -> list[tuple[float, int]]:
    """Returns the moments at which the number of open requests changes, each with the new number. At equal moments,
    ends come before starts.
    """
    changes = [(r.started_at, 1) for r in records]
    changes += [(r.started_at + r.latency_s, -1) for r in records]
    changes.sort()
    counts = np.cumsum([change for _, change in changes], dtype=np.int64).tolist()
    return [(at, count) for (at, _), count in zip(changes, counts, strict=True)]


def _tokens(record: Record) -> tuple[int, int]:
    return record.input_tokens, record.output_tokens


def _is_good(record: Record, objectives: Mapping[str, float]) -> bool:
    values = {"ttft": record.ttft_s, "tpot": record.tpot_s or 0.0, "e2el": record.latency_s}
    return all(values[name] <= limit for name, limit in objectives.items())
