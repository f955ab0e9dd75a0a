"""The metrics of a result as rows, for the terminal and for the HTML page."""

from collections.abc import Iterable, Iterator

from weft.bench.report.figures import METRICS
from weft.bench.report.result import Document

Row = tuple[str, str]
_TOTALS = (
    ("completed", "Successful requests", "{:d}"),
    ("failed", "Failed requests", "{:d}"),
    ("max_concurrency", "Maximum concurrency (as set)", "{:d}"),
    ("request_rate", "Request rate (as set)", "{}"),
    ("duration", "Duration (s)", "{:.2f}"),
    ("total_input_tokens", "Input tokens", "{:d}"),
    ("total_output_tokens", "Output tokens", "{:d}"),
    ("request_throughput", "Request throughput (requests/s)", "{:.2f}"),
    ("request_goodput", "Goodput (requests/s)", "{:.2f}"),
    ("output_throughput", "Output throughput (tokens/s)", "{:.2f}"),
    ("max_output_tokens_per_s", "Peak output throughput (tokens/s)", "{:.2f}"),
    ("max_concurrent_requests", "Peak concurrent requests", "{:d}"),
    ("total_token_throughput", "Total token throughput (tokens/s)", "{:.2f}"),
)


def sections(document: Document) -> Iterator[tuple[str, list[Row]]]:
    """Yields a title and its rows: first the totals, then each metric of the result if a request was completed."""
    rows = [
        (label, form.format(document[key]))
        for key, label, form in _TOTALS
        if document.get(key) is not None
    ]
    yield "Serving benchmark", rows
    for metric in METRICS.values() if document["completed"] else ():
        found = list(_spread_rows(document, metric.key, metric.name))
        if found:
            yield metric.title, found


def _spread_rows(document: Document, key: str, name: str) -> Iterator[Row]:
    end = f"_{key}_ms"
    for field, value in document.items():
        if field.endswith(end):
            kind = field.removesuffix(end)
            shown = kind.upper() if kind[1:2].isdigit() else kind.capitalize()
            yield f"{shown} {name} (ms)", f"{value:.2f}"


def lines(document: Document) -> Iterable[str]:
    """Yields the lines of the printed table."""
    for title, rows in sections(document):
        yield f" {title} ".center(56, "=" if title == "Serving benchmark" else "-")
        for label, value in rows:
            yield f"{label + ':':<40} {value:>15}"
    yield "=" * 56
