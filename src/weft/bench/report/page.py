"""An HTML page with the metrics and plots of a run. The page loads nothing from other addresses."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

import numpy as np

from weft.bench.drive import Run
from weft.bench.record import Record, State
from weft.bench.report.figures import METRICS, concurrency, tokens_by_second
from weft.bench.report.plots import Line, Span, line_chart, span_chart
from weft.bench.report.result import Document
from weft.bench.report.table import Row, sections

_SHOWN_METRICS = ("ttft", "tpot", "itl", "e2el")
_MAX_BARS = 400
_NUM_QUANTILES = 400
_SHOWN_SETTINGS = ("date", "backend", "model_id", "label", "num_prompts", "burstiness")
_STYLE = """
:root{color-scheme:light dark;--line:#8886;--c0:#2563eb;--c1:#d97706;--c2:#059669;--c3:#9333ea}
@media(prefers-color-scheme:dark){:root{--c0:#60a5fa;--c1:#fbbf24;--c2:#34d399;--c3:#c084fc}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1360px;margin:2em auto;padding:0 1em}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1.5em}
figure{margin:0}figcaption,caption{font-weight:600;text-align:left;padding:.3em 0}
svg{width:100%;height:auto}svg text{font-size:12px;fill:currentColor}
.g{stroke:var(--line);stroke-width:.5}polyline{fill:none;stroke-width:1.8}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
table{border-collapse:collapse;width:100%}td{border-top:1px solid var(--line);padding:.15em .4em}
td+td{text-align:right;font-variant-numeric:tabular-nums}
"""


def run_page(document: Document, run: Run) -> str:
    """Returns the HTML page of one run."""
    done = run.in_state(State.COMPLETED)
    settings = [
        (name, str(document[name])) for name in _SHOWN_SETTINGS if document.get(name) is not None
    ]
    tables = [
        _table("Load", settings),
        *(_table(title, rows) for title, rows in sections(document)),
    ]
    return page(f"Benchmark of {document['model_id']}", [*_plots(done), *tables])


def page(title: str, parts: Iterable[str]) -> str:
    """Returns an HTML page with the given parts, which are HTML already."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><main>{''.join(parts)}</main></body></html>\n"
    )


def _plots(done: Sequence[Record]) -> Iterator[str]:
    if not done:
        return
    for key in _SHOWN_METRICS:
        metric = METRICS[key]
        values = [value for record in done for value in metric.values(record)]
        if values:
            yield line_chart(metric.title, "ms", "share below", [_distribution(values)])
    began = min(record.started_at for record in done)
    tokens = tokens_by_second(done).tolist()
    per_second = [(float(i), n) for i, n in enumerate((*tokens, tokens[-1]))]
    yield line_chart(
        "Output tokens", "s", "tokens a second", [Line("", per_second, is_stepped=True)]
    )
    open_at = [(at - began, float(count)) for at, count in concurrency(done)]
    yield line_chart("Open requests", "s", "requests", [Line("", open_at, is_stepped=True)])
    kinds = ("until the first token", "until the last")
    shown = f"Requests (the first {_MAX_BARS})" if len(done) > _MAX_BARS else "Requests"
    yield span_chart(shown, "s", "request", list(_spans(done[:_MAX_BARS], began)), kinds)


def _distribution(values: Sequence[float]) -> Line:
    shares = np.linspace(0, 1, min(len(values), _NUM_QUANTILES) + 1)
    found = np.quantile(np.array(values) * 1000, shares)
    return Line("", list(zip(found.tolist(), shares.tolist(), strict=True)))


def _spans(records: Sequence[Record], began: float) -> Iterator[Span]:
    for row, record in enumerate(records):
        start = record.started_at - began
        yield Span(row, start, start + record.ttft_s, 0)
        yield Span(row, start + record.ttft_s, start + record.latency_s, 1)


def _table(title: str, rows: Iterable[Row]) -> str:
    body = "".join(
        f"<tr><td>{escape(label)}</td><td>{escape(value)}</td></tr>" for label, value in rows
    )
    return f"<table><caption>{escape(title)}</caption>{body}</table>"
