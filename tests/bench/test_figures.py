"""From what was measured to figures: weft.bench.report.figures, by hand-made records."""

import pytest

from weft.bench.drive import Run
from weft.bench.record import Record, State
from weft.bench.report import table
from weft.bench.report.figures import (
    METRICS,
    concurrency,
    parse_goodput,
    parse_metrics,
    parse_percentiles,
    spread,
    tokens_by_second,
    totals,
)
from weft.core.errors import ConfigError


def record(started_at=0.0, ttft_s=0.5, gaps_s=(0.1, 0.3), output_tokens=5, state=State.COMPLETED):
    gaps = list(gaps_s)
    return Record(
        arrived_at=started_at,
        started_at=started_at,
        ttft_s=ttft_s,
        gaps_s=gaps,
        latency_s=ttft_s + sum(gaps),
        input_tokens=10,
        output_tokens=output_tokens,
        state=state,
    )


def test_time_per_token_leaves_out_the_first():
    """(E2EL - TTFT) / (tokens - 1), whatever the messages; of one token there is none."""
    assert record().tpot_s == pytest.approx(0.4 / 4)
    assert record(gaps_s=(), output_tokens=1).tpot_s is None


def test_rates_are_over_the_whole_run():
    """From the first moment to the last answer; what failed or was given up adds nothing."""
    run = Run([record(), record(), record(state=State.FAILED), record(state=State.CANCELLED)], 4.0)
    found = totals(run, {})
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 10)
    assert found["request_throughput"] == 0.5
    assert found["output_throughput"] == 2.5
    assert found["total_token_throughput"] == 7.5
    assert found["request_goodput"] is None


def test_goodput_counts_requests_that_keep_to_every_objective():
    """One that misses one objective is none; an answer of one token has a TPOT of 0."""
    slow_first = record(ttft_s=0.9)
    slow_rest = record(gaps_s=(2.0, 2.0))
    single = record(gaps_s=(), output_tokens=1)
    run = Run([record(), slow_first, slow_rest, single], 2.0)
    assert totals(run, parse_goodput(["ttft:600"]))["request_goodput"] == 1.5
    assert totals(run, parse_goodput(["ttft:600", "tpot:200"]))["request_goodput"] == 1.0
    assert totals(run, parse_goodput(["e2el:500"]))["request_goodput"] == 0.5


def test_gaps_of_all_answers_are_one_distribution():
    """ITL is of messages, not of requests: long answers weigh more."""
    found = spread(
        METRICS["itl"], [record(gaps_s=(0.1, 0.1, 0.1)), record(gaps_s=(0.5,))], [50, 99.9]
    )
    assert found["mean_itl_ms"] == pytest.approx(200)
    assert found["median_itl_ms"] == found["p50_itl_ms"] == pytest.approx(100)
    assert found["p99.9_itl_ms"] == pytest.approx(500, rel=0.01)


def test_percentiles_lie_between_the_nearest_values():
    """Linearly, as numpy's."""
    records = [record(ttft_s=ttft_s) for ttft_s in (0.1, 0.2)]
    assert spread(METRICS["ttft"], records, [25])["p25_ttft_ms"] == pytest.approx(125)


def test_nothing_completed_is_zeros():
    """As vLLM writes them, so that JSON has numbers."""
    assert set(spread(METRICS["itl"], [], [99]).values()) == {0.0}
    assert totals(Run([], 1.0), {})["max_output_tokens_per_s"] == 0.0


def test_tokens_of_a_message_with_several_all_count():
    """5 tokens in 3 messages: at 0.5, 0.6 and, in the next second, 1.1 after the first request."""
    found = tokens_by_second([record(started_at=100.0, gaps_s=(0.1, 0.5))])
    assert found.tolist() == pytest.approx([10 / 3, 5 / 3])


def test_a_request_that_ends_leaves_before_one_that_begins():
    """Two, one after another, are never two at a time."""
    first = record(ttft_s=1.0, gaps_s=())
    assert max(n for _, n in concurrency([first, record(started_at=1.0)])) == 1
    assert max(n for _, n in concurrency([first, record(started_at=0.9)])) == 2


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        (parse_goodput, ["itl:5"]),
        (parse_goodput, ["ttft"]),
        (parse_goodput, ["ttft:-1"]),
        (parse_goodput, ["ttft:nan"]),
        (parse_metrics, "ttft,latency"),
        (parse_percentiles, "50,x"),
        (parse_percentiles, "101"),
    ],
)
def test_what_is_no_figure_is_refused_by_its_flag(parse, given):
    """With what is allowed."""
    with pytest.raises(ConfigError, match="--"):
        parse(given)


def test_the_table_has_vllm_s_words_if_they_are_wanted():
    """Scripts look for these labels, which end at column 41."""
    document = {
        "completed": 2,
        "failed": 1,
        "max_concurrency": 4,
        "duration": 1.5,
        "total_input_tokens": 20,
        "total_output_tokens": 8,
        "request_throughput": 1.25,
        "output_throughput": 5.0,
        "total_token_throughput": 17.5,
        "mean_ttft_ms": 3.0,
        "p99_ttft_ms": 4.25,
    }
    assert list(table.lines(document, "vllm")) == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2         ",
        "Failed requests:                         1         ",
        "Maximum request concurrency:             4         ",
        "Benchmark duration (s):                  1.50      ",
        "Total input tokens:                      20        ",
        "Total generated tokens:                  8         ",
        "Request throughput (req/s):              1.25      ",
        "Output token throughput (tok/s):         5.00      ",
        "Total token throughput (tok/s):          17.50     ",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          3.00      ",
        "P99 TTFT (ms):                           4.25      ",
        "==================================================",
    ]
