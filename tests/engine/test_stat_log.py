"""The line about a busy engine's load."""

import logging

from tests.engine.test_front import HandClient, begin
from weft.core.observe.stats import StepStats
from weft.core.values.engine_snapshots import EngineLoad
from weft.engine.front.stat_log import StatLog
from weft.engine.ipc.messages import StepOutput


class Clock:
    """Each call is five seconds later."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 5.0
        return self.now


def test_rates_are_those_since_the_last_line():
    """Tokens a second, not totals."""
    log = StatLog(Clock())
    log.line(EngineLoad(), StepStats(total_prompt_tokens=100, total_generated_tokens=100))
    load = EngineLoad(num_running=2, num_waiting=1, num_used_tokens=1, max_total_tokens=4)
    line = log.line(load, StepStats(total_prompt_tokens=110, total_generated_tokens=125))
    assert line == (
        "prompt 2.0 tok/s, generation 5.0 tok/s, running 2, waiting 1, "
        "KV usage 25.0%, prefix hit rate 0.0%"
    )


def test_an_idle_engine_is_not_mentioned():
    """After the line about its last work there is none."""
    log = StatLog(Clock())
    done = StepStats(total_generated_tokens=5)
    assert log.line(EngineLoad(), StepStats()) is None
    assert log.line(EngineLoad(), done) is not None
    assert log.line(EngineLoad(), done) is None


def test_what_waits_without_progress_is_mentioned():
    """A stuck queue must show."""
    log = StatLog(Clock())
    assert log.line(EngineLoad(num_waiting=1), StepStats()) is not None


def test_the_hit_rate_is_of_the_last_thousand_prompts():
    """Older ones no longer count, as soon as the newer ones are that many."""
    log = StatLog(Clock())
    busy = EngineLoad(num_running=1)
    log.line(busy, StepStats(total_lookups=500, total_queried_tokens=500))
    half = log.line(
        busy, StepStats(total_lookups=1000, total_queried_tokens=1000, total_hit_tokens=500)
    )
    whole = log.line(
        busy, StepStats(total_lookups=1500, total_queried_tokens=1500, total_hit_tokens=1000)
    )
    assert half.endswith("prefix hit rate 50.0%")
    assert whole.endswith("prefix hit rate 100.0%")


async def test_a_client_logs_one_line_for_work_and_none_without(caplog):
    """`do_log_stats` says what happened since it was last asked."""
    caplog.set_level(logging.INFO, logger="weft.engine")
    client = HandClient()
    task = await begin(client)
    client._on_event(
        StepOutput(outputs=[], load=EngineLoad(), stats=StepStats(total_generated_tokens=9))
    )
    await client.do_log_stats()
    await client.do_log_stats()
    task.cancel()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "generation" in lines[0]
