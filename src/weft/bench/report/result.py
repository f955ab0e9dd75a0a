"""The result of a run with the JSON keys of `vllm bench serve`, and its file."""

import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from weft.bench.drive import Run
from weft.bench.options import Load, ReportOptions, TrafficOptions
from weft.bench.record import State
from weft.bench.report.figures import (
    Metric,
    parse_goodput,
    parse_metrics,
    parse_percentiles,
    spread,
    totals,
)
from weft.core.errors import ConfigError

Document = dict[str, Any]
_QUEUE_METRICS = ("client_queue_time", "e2el_including_client_queue")


def check_report(options: ReportOptions) -> None:
    """Raises a `ConfigError` that names the invalid flag, before any measurement."""
    parse_goodput(options.goodput)
    parse_metrics(options.percentile_metrics)
    parse_percentiles(options.metric_percentiles)
    _metadata(options.metadata)
    if options.save_detailed and not (options.save_result or options.append_result):
        raise ConfigError("--save-detailed needs --save-result or --append-result")


def to_document(run: Run, model: str, load: Load) -> Document:
    """Returns the result as it is printed, and saved without details."""
    traffic, report = load.traffic, load.report
    rate = traffic.request_rate
    document: Document = {
        "date": datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": load.target.backend,
        "backend": load.target.backend,
        "label": report.label,
        "model_id": model,
        "tokenizer_id": load.target.tokenizer,
        "num_prompts": load.prompts.num_prompts,
        **_metadata(report.metadata),
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": "inf" if math.isinf(traffic.burstiness) else traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }
    if traffic.ramp_up_strategy is not None:
        for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"):
            document[name] = getattr(traffic, name)
    document |= totals(run, parse_goodput(report.goodput))
    if run.is_cut_short:
        document["cut_short"] = True
    completed = run.in_state(State.COMPLETED)
    percentiles = parse_percentiles(report.metric_percentiles)
    for metric in metrics_of(report, traffic):
        document |= spread(metric, completed, percentiles)
    return document


def metrics_of(report: ReportOptions, traffic: TrafficOptions) -> list[Metric]:
    """Returns the requested metrics. Client queue times exist only with a limit on concurrency."""
    chosen = parse_metrics(report.percentile_metrics)
    has_queue = traffic.max_concurrency is not None
    return [metric for metric in chosen if has_queue or metric.key not in _QUEUE_METRICS]


def details(run: Run) -> Document:
    """Returns the measurements of all finished requests, in the order of their send times. Failed requests have an
    error and no tokens.
    """
    ended = [record for record in run.records if record.state is not State.CANCELLED]
    return {
        "input_lens": [record.input_tokens for record in ended],
        "output_lens": [record.output_tokens for record in ended],
        "ttfts": [record.ttft_s for record in ended],
        "itls": [record.gaps_s for record in ended],
        "latencies": [record.latency_s for record in ended],
        "start_times": [record.started_at for record in ended],
        "queue_times": [record.queue_s for record in ended],
        "generated_texts": [record.text for record in ended],
        "errors": [record.error for record in ended],
    }


def result_path(document: Document, report: ReportOptions) -> Path:
    """Returns the path of the JSON file."""
    name = report.result_filename
    if name is None:
        load = f"{document['request_rate']}qps"
        if "ramp_up_strategy" in document:
            start, end = document["ramp_up_start_rps"], document["ramp_up_end_rps"]
            load = f"ramp-up-{document['ramp_up_strategy']}-{start:g}qps-{end:g}qps"
        if document["max_concurrency"] is not None:
            load += f"-concurrency{document['max_concurrency']}"
        label = document["label"] or document["backend"]
        model = "".join(c if c.isalnum() or c in "._-" else "-" for c in base_name(document))
        name = f"{label}-{load}-{model}-{document['date']}.json"
    return (report.result_dir or Path()) / name


def base_name(document: Document) -> str:
    """Returns the part of the model's name after the last slash."""
    return str(document["model_id"]).rsplit("/", 1)[-1]


def write_document(path: Path, document: Document, *, is_appended: bool = False) -> None:
    """Writes the result as one line of JSON; `is_appended` keeps the earlier lines of the file."""
    write_file(path, msgspec.json.encode(document) + b"\n", is_appended=is_appended)


def write_file(path: Path, content: bytes, *, is_appended: bool = False) -> None:
    """Writes a file. Raises `ConfigError` with the reason of a failure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if is_appended else "wb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def read_documents(path: Path) -> list[Document]:
    """Returns the results in a file, one per line, of Weft or vLLM."""
    try:
        lines = path.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Document) for line in lines if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: must have one benchmark result in JSON per line ({error})"
        ) from error
    if not found or not all("completed" in document for document in found):
        raise ConfigError(f"{path}: not results of `bench serve`")
    return found


def _metadata(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"--metadata {pair}: must be KEY=VALUE")
        found[name.strip()] = value.strip()
    return found
