"""The metrics of a result as rows, for the terminal and for the HTML page."""

from collections.abc import Iterable, Iterator
from typing import Literal

from weft.bench.report.figures import METRICS
from weft.bench.report.result import Document

Row = tuple[str, str]
Words = Literal["weft", "vllm"]
_TOTALS = (
    ("completed", "Successful requests", "Successful requests", "{:d}"),
    ("failed", "Failed requests", "Failed requests", "{:d}"),
    ("max_concurrency", "Maximum concurrency (as set)", "Maximum request concurrency", "{:d}"),
    ("request_rate", "Request rate (as set)", "Request rate configured (RPS)", "{}"),
    ("duration", "Duration (s)", "Benchmark duration (s)", "{:.2f}"),
    ("total_input_tokens", "Input tokens", "Total input tokens", "{:d}"),
    ("total_output_tokens", "Output tokens", "Total generated tokens", "{:d}"),
    ("request_throughput", "Request throughput (requests/s)", "Request throughput (req/s)", "{:.2f}"),
    ("request_goodput", "Goodput (requests/s)", "Request goodput (req/s)", "{:.2f}"),
    ("output_throughput", "Output throughput (tokens/s)", "Output token throughput (tok/s)", "{:.2f}"),
    ("max_output_tokens_per_s", "Peak output throughput (tokens/s)", "Peak output token throughput (tok/s)", "{:.2f}"),
    ("max_concurrent_requests", "Peak concurrent requests", "Peak concurrent requests", "{:d}"),
    ("total_token_throughput", "Total token throughput (tokens/s)", "Total token throughput (tok/s)", "{:.2f}"),
)  # fmt: skip
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def sections(document: Document, words: Words = "weft") -> Iterator[tuple[str, list[Row]]]:
    """Yields a title and its rows: first the totals, then each metric of the result if a request was completed."""
    is_vllm = words == "vllm"
    rows = [
        (theirs if is_vllm else ours, form.format(document[key]))
        for key, ours, theirs, form in _TOTALS
        if document.get(key) is not None
    ]
    yield "Serving Benchmark Result" if is_vllm else "Serving benchmark", rows
    for metric in METRICS.values() if document["completed"] else ():
        found = list(_spread_rows(document, metric.key, metric.name))
        if found:
            yield _TITLES.get(metric.key, metric.title) if is_vllm else metric.title, found


def _spread_rows(document: Document, key: str, name: str) -> Iterator[Row]:
    end = f"_{key}_ms"
    for field, value in document.items():
        if field.endswith(end):
            kind = field.removesuffix(end)
            shown = kind.upper() if kind[1:2].isdigit() else kind.capitalize()
            yield f"{shown} {name} (ms)", f"{value:.2f}"


def lines(document: Document, words: Words = "weft") -> Iterable[str]:
    """Yields the lines of the printed table. With `words` "vllm" they are those of `vllm bench serve`."""
    is_vllm = words == "vllm"
    width = 50 if is_vllm else 56
    for number, (title, rows) in enumerate(sections(document, words)):
        shown = title if is_vllm and number else f" {title} "
        yield shown.center(width, "-" if number else "=")
        for label, value in rows:
            yield f"{label + ':':<40} {value:<10}" if is_vllm else f"{label + ':':<40} {value:>15}"
    yield "=" * width
