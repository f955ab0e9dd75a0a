"""How two results differ, and how sure that is: weft.bench.report.compare."""

import json

import numpy as np
import pytest

from weft.bench.options import CompareOptions
from weft.bench.report.compare import compare, differences
from weft.core.errors import ConfigError

QUICK = CompareOptions(resamples=300)


def result(scale=1.0, *, num=60, seed=0, has_details=True):
    """A document of `bench serve`, of answers of 5 messages and 9 tokens."""
    rng = np.random.default_rng(seed)
    ttfts = rng.gamma(9.0, scale / 90, num).tolist()
    itls = rng.gamma(9.0, scale / 900, (num, 4)).tolist()
    document = {
        "completed": num,
        "request_throughput": 10 / scale,
        "output_throughput": 90 / scale,
        "median_ttft_ms": float(np.median(ttfts)) * 1000,
    }
    details = {"ttfts": ttfts, "itls": itls, "output_lens": [9] * num, "errors": [""] * num}
    return document | details if has_details else document


def by_figure(a, b, options=QUICK):
    return {row.figure: row for row in differences(a, b, options)}


def test_a_change_is_found_with_its_interval():
    """Twice as slow in everything: the interval holds that, and not no change."""
    found = by_figure([result()], [result(2.0, seed=1)])
    for figure in ("median_ttft_ms", "mean_itl_ms", "mean_tpot_ms", "median_e2el_ms"):
        row = found[figure]
        assert row.low_percent < 100 < row.high_percent
        assert row.is_sure
    assert found["output_throughput"].change_percent == pytest.approx(-50)


def test_the_same_server_twice_is_no_change():
    """Noise is not a difference: the intervals hold no change."""
    found = by_figure([result()], [result(seed=1)])
    rows = [row for name, row in found.items() if name.startswith("median")]
    assert len(rows) == 4
    assert not any(row.is_sure for row in rows)


def test_figures_are_those_of_the_result():
    """As `bench serve` computes them."""
    document = result()
    row = by_figure([document], [document])["median_ttft_ms"]
    assert row.a == row.b == pytest.approx(document["median_ttft_ms"])
    assert row.change_percent == pytest.approx(0)


def test_an_interval_narrows_with_more_requests():
    """As the root of their number: a quarter for sixteen times as many."""
    few = by_figure([result(num=50)], [result(num=50, seed=1)])["mean_ttft_ms"]
    many = by_figure([result(num=800)], [result(num=800, seed=1)])["mean_ttft_ms"]
    widths = [row.high_percent - row.low_percent for row in (few, many)]
    assert widths[1] < widths[0] / 2


def test_gaps_are_drawn_by_request():
    """Answers that are each slow or fast throughout are as few facts as there are answers."""
    steady = result(num=20)
    gaps = np.random.default_rng(0).gamma(9.0, 0.001, 20)
    clustered = steady | {"itls": [[gap] * 50 for gap in gaps.tolist()]}
    spread = steady | {"itls": np.resize(gaps, (20, 50)).tolist()}
    widths = [
        row.high_percent - row.low_percent
        for row in (by_figure([runs], [runs])["mean_itl_ms"] for runs in (clustered, spread))
    ]
    assert widths[0] > 3 * widths[1]


def test_failed_requests_are_left_out():
    """Their times are none."""
    document = result()
    document["errors"][0], document["ttfts"][0] = "HTTP 503", 1000.0
    assert by_figure([document], [document])["p99_ttft_ms"].a < 1000


def test_without_details_there_is_no_interval():
    """The figures alone are compared."""
    row = by_figure([result(has_details=False)], [result(2.0, has_details=False)])["median_ttft_ms"]
    assert row.change_percent == pytest.approx(100)
    assert row.low_percent is None


@pytest.mark.parametrize(("num_runs", "has_interval"), [(2, False), (4, True)])
def test_throughput_is_as_sure_as_its_runs(num_runs, has_interval):
    """One run has one throughput."""
    scales = np.linspace(1, 1.02, num_runs)
    a, b = ([result(scale * factor) for scale in scales] for factor in (1.0, 2.0))
    row = by_figure(a, b)["output_throughput"]
    assert row.change_percent == pytest.approx(-50)
    assert (row.low_percent is not None) == has_interval
    assert row.is_sure == has_interval


def test_the_comparison_is_printed_and_written(tmp_path, capsys):
    """A table for people, JSON for scripts."""
    paths = [tmp_path / name for name in ("a.json", "b.json", "out.json")]
    for path, scale in zip(paths, (1.0, 2.0), strict=False):
        path.write_text(json.dumps(result(scale)) + "\n")
    options = CompareOptions(resamples=50, output_json=paths[2])
    assert compare(paths[0], paths[1], options) == 0
    assert "95% interval" in capsys.readouterr().out
    written = json.loads(paths[2].read_text())
    assert {row["figure"] for row in written["figures"]} >= {"median_ttft_ms", "p99_itl_ms"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"completed": 1, "ttfts": 3}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    """By a sentence, not a traceback."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        compare(path, path, QUICK)
