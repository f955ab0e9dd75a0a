"""`weft bench compare`: shows the change from the results of A to those of B, with confidence intervals.

Intervals are bootstrap percentile intervals. Latencies are resampled by request, with all gaps of an answer together,
because the gaps of one answer depend on each other; this needs the details of `--save-detailed`. A run has only one
throughput, so the interval of throughputs resamples the runs in a file and needs three of them (`--append-result`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.bench.options import CompareOptions
from weft.bench.record import Record, State
from weft.bench.report.figures import METRICS
from weft.bench.report.result import Document, read_documents, write_document
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say

Floats = NDArray[np.float64]
_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_METRICS = ("ttft", "tpot", "itl", "e2el")
_MIN_RUNS = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """Change of a metric between two results. `low_percent` and `high_percent` bound the change; None if there is too
    little data.
    """

    figure: str
    a: float
    b: float
    change_percent: float | None
    low_percent: float | None = None
    high_percent: float | None = None

    @property
    def is_sure(self) -> bool:
        """True if the interval does not contain zero change."""
        if self.low_percent is None or self.high_percent is None:
            return False
        return self.low_percent > 0 or self.high_percent < 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Values of one metric in milliseconds, ascending, and for each value the request that it belongs to."""

    values: Floats
    owners: NDArray[np.int64]
    num_owners: int


# Statistic of values, where each value counts as often as its weight.
_Weighted = Callable[[Floats, Floats], float]


def compare(a: Path, b: Path, options: CompareOptions) -> int:
    """Prints the differences and, if requested, writes them to a file; returns the exit status."""
    if not 0 < options.confidence < 1:
        raise ConfigError("--confidence must be between 0 and 1")
    if options.resamples < 1:
        raise ConfigError("--resamples must be at least 1")
    found = list(differences(read_documents(a), read_documents(b), options))
    say("\n".join(_lines(found, options)))
    if options.output_json is not None:
        document = {
            "a": str(a),
            "b": str(b),
            **_settings(options),
            "figures": [asdict(d) for d in found],
        }
        write_document(options.output_json, document)
    return 0


def differences(
    a: Sequence[Document], b: Sequence[Document], options: CompareOptions
) -> Iterator[Difference]:
    """Yields the differences of all throughputs, then of every latency that both files have."""
    rng = np.random.default_rng(options.seed)
    for key in _RATES:
        rates = [np.array([d[key] for d in runs if d.get(key) is not None]) for runs in (a, b)]
        if all(len(rate) for rate in rates):
            yield _of_rates(key, rates[0], rates[1], rng, options)
    for key in _METRICS:
        samples = [_sample(runs, key) for runs in (a, b)]
        if samples[0] is not None and samples[1] is not None:
            yield from _of_samples(key, samples[0], samples[1], rng, options)
        else:
            yield from _of_summaries(key, a, b)


def _of_rates(
    key: str, a: Floats, b: Floats, rng: np.random.Generator, options: CompareOptions
) -> Difference:
    """Returns the difference of a throughput, averaged over the runs of each file."""
    means = (float(a.mean()), float(b.mean()))
    if min(len(a), len(b)) < _MIN_RUNS:
        return _difference(key, *means)
    size = options.resamples
    drawn = [rng.choice(rates, (size, len(rates))).mean(axis=1) for rates in (a, b)]
    return _difference(key, *means, _interval(drawn[0], drawn[1], options))


def _of_samples(
    key: str, a: _Sample, b: _Sample, rng: np.random.Generator, options: CompareOptions
) -> Iterator[Difference]:
    drawn = [_resampled(sample, rng, options.resamples) for sample in (a, b)]
    for column, (kind, (plain, _)) in enumerate(_KINDS.items()):
        points = [plain(sample.values) for sample in (a, b)]
        bounds = _interval(drawn[0][:, column], drawn[1][:, column], options)
        yield _difference(f"{kind}_{key}_ms", points[0], points[1], bounds)


def _of_summaries(key: str, a: Sequence[Document], b: Sequence[Document]) -> Iterator[Difference]:
    """Yields the differences of latencies without intervals, averaged over runs; used for files without details."""
    for kind in _KINDS:
        name = f"{kind}_{key}_ms"
        means = [np.mean([d[name] for d in runs if name in d] or [np.nan]) for runs in (a, b)]
        if not np.isnan(means).any():
            yield _difference(name, float(means[0]), float(means[1]))


def _sample(runs: Sequence[Document], key: str) -> _Sample | None:
    """Returns all values of a metric in runs with details; None if a run lacks details or there is no value."""
    per_request: list[Sequence[float]] = []
    for document in runs:
        if "ttfts" not in document:
            return None
        per_request += [METRICS[key].values(record) for record in _records(document)]
    if not any(per_request):
        return None
    values = np.array([value for values in per_request for value in values]) * 1000
    owners = np.repeat(np.arange(len(per_request)), [len(values) for values in per_request])
    order = np.argsort(values, kind="stable")
    return _Sample(values[order], owners[order], len(per_request))


class _Details(msgspec.Struct):
    """Fields of a detailed result, of Weft or vLLM. Older results of vLLM have no `latencies`."""

    ttfts: list[float]
    itls: list[list[float]]
    output_lens: list[int]
    errors: list[str]


def _records(document: Document) -> Iterator[Record]:
    try:
        found = msgspec.convert(document, _Details)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the details of a result cannot be read: {error}") from error
    rows = zip(found.ttfts, found.itls, found.output_lens, found.errors, strict=True)
    for ttft_s, gaps_s, num_tokens, error_text in rows:
        if not error_text:
            yield Record(
                arrived_at=0.0,
                ttft_s=ttft_s,
                gaps_s=gaps_s,
                latency_s=ttft_s + sum(gaps_s),
                output_tokens=num_tokens,
                state=State.COMPLETED,
            )


def _resampled(sample: _Sample, rng: np.random.Generator, size: int) -> Floats:
    """Returns the statistics of `size` bootstrap samples. Each sample draws as many requests as there are, with
    replacement.
    """
    found = np.empty((size, len(_KINDS)))
    for row in range(size):
        chosen = rng.integers(sample.num_owners, size=sample.num_owners)
        times = np.bincount(chosen, minlength=sample.num_owners).astype(np.float64)
        weights = times[sample.owners]
        found[row] = [weighted(sample.values, weights) for _, weighted in _KINDS.values()]
    return found


def _mean(values: Floats, weights: Floats) -> float:
    total = weights.sum()
    return float(values @ weights / total) if total else 0.0


def _quantile(share: float) -> _Weighted:
    """Returns a statistic: the smallest value that at least this share of the values does not exceed."""

    def quantile(values: Floats, weights: Floats) -> float:
        sums = np.cumsum(weights)
        place = np.searchsorted(sums, share * sums[-1])
        return float(values[min(place, len(values) - 1)])

    return quantile


# Each statistic as `bench serve` computes it, and for weighted values.
_KINDS: dict[str, tuple[Callable[[Floats], float], _Weighted]] = {
    "mean": (lambda values: float(values.mean()), _mean),
    "median": (lambda values: float(np.median(values)), _quantile(0.5)),
    "p99": (lambda values: float(np.percentile(values, 99)), _quantile(0.99)),
}


def _interval(a: Floats, b: Floats, options: CompareOptions) -> tuple[float, float] | None:
    """Returns the lower and upper bound of the change in percent."""
    usable = a > 0
    if not usable.any():
        return None
    changes = (b[usable] / a[usable] - 1) * 100
    outside = (1 - options.confidence) / 2
    low, high = np.quantile(changes, (outside, 1 - outside)).tolist()
    return low, high


def _difference(
    figure: str, a: float, b: float, bounds: tuple[float, float] | None = None
) -> Difference:
    change = (b / a - 1) * 100 if a else None
    return Difference(figure, a, b, change, *(bounds or (None, None)))


def _settings(options: CompareOptions) -> dict[str, Any]:
    return {"confidence": options.confidence, "resamples": options.resamples, "seed": options.seed}


def _lines(found: Sequence[Difference], options: CompareOptions) -> Iterator[str]:
    yield f"{'':<26}{'A':>12}{'B':>12}{'change':>10}   {options.confidence:.0%} interval"
    for row in found:
        change = "" if row.change_percent is None else f"{row.change_percent:+.1f} %"
        interval = ""
        if row.low_percent is not None and row.high_percent is not None:
            sure = "" if row.is_sure else "  (may be no change)"
            interval = f"{row.low_percent:+.1f} to {row.high_percent:+.1f} %{sure}"
        yield f"{row.figure:<26}{row.a:>12.2f}{row.b:>12.2f}{change:>10}   {interval}".rstrip()
    if any(row.low_percent is None for row in found):
        yield (
            f"Without interval: throughput needs {_MIN_RUNS} runs in each file (--append-result), "
            "latency every request (--save-detailed)."
        )
