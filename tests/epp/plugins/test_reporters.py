import logging

import pytest

from tests.epp.pools import around, bench, parameters, pool_of, request
from weft.core.errors import ConfigError
from weft.epp.decision.tickets import Ending
from weft.epp.plugins.reporters import AttributeReporter, ReporterParameters
from weft.epp.request.values import Usage

ALL = Usage(num_prompt_tokens=30, num_completion_tokens=12, num_cached_tokens=16)


def reporter(expression: str, condition: str = "", **key: str) -> AttributeReporter:
    attribute = {"key": {"name": "cost", **key}, "expression": expression, "condition": condition}
    return AttributeReporter(parameters(ReporterParameters, attributes=[attribute]), around())


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("usage.prompt_tokens + 2 * usage.completion_tokens\n", 54),
        ("usage.total_tokens", 42),
        ("usage.input_tokens - usage.prompt_tokens_details.cached_tokens", 14),
        ("has(usage.absent) ? usage.absent : usage.output_tokens", 12),
        ("double(usage.prompt_tokens) * 0.5", 15.0),
        ("usage.prompt_tokens * 0.15 + usage.completion_tokens * 0.6", 11.7),
        ("usage.total_tokens / 1000", 0.042),
        ("usage.total_tokens % 10", 2),
        ("int(usage.prompt_tokens) / 7", 4),
        ("size('7 of 7') + 10", 16),
    ],
)
def test_numbers_are_made_of_usage(expression: str, value: float):
    """Under the names that OpenAI's and Anthropic's APIs have for them."""
    assert reporter(expression).report(ALL) == {"envoy.lb": {"cost": pytest.approx(value)}}


def test_a_condition_and_a_namespace_are_honoured():
    """What a response does not report is absent, and can be asked for."""
    made = reporter("usage.prompt_tokens", "has(usage.completion_tokens)", namespace="mine")
    assert made.report(ALL) == {"mine": {"cost": 30}}
    assert made.report(Usage(num_prompt_tokens=30)) == {}


@pytest.mark.parametrize(
    "expression", ["usage.nothing", "1 / (usage.prompt_tokens - 30)", "'text'", "true", "nofn(usage)",
                   "1.0 / 0.0"]
)  # fmt: skip
def test_what_gives_no_number_is_left_out(expression: str, caplog: pytest.LogCaptureFixture):
    """And logged once: the next response would say the same."""
    made = reporter(expression)
    with caplog.at_level(logging.WARNING):
        assert [made.report(ALL), made.report(ALL)] == [{}, {}]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("usage.a +", "attributes[0].expression: not a valid CEL expression"),
        ("secrets.a", "the expression may read only usage"),
    ],
)
def test_expressions_are_checked_at_the_start(expression: str, words: str):
    """Not at the first response."""
    with pytest.raises(ConfigError) as caught:
        reporter(expression)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_reach_the_gateway_when_the_response_has_ended():
    """Once, and only of a response that ended well; every request's response is followed for it."""
    made = bench(
        "plugins:\n- {type: queue-scorer}\n- type: request-attribute-reporter\n  parameters:\n"
        "    attributes: [{key: {name: cost}, expression: usage.total_tokens}]\n",
        pool_of(1),
    )
    first, failed = made.pick(request(1)), made.pick(request(1, request_id="s"))
    assert first.tracks_response
    made.director.on_usage(first.ticket, ALL)
    made.director.on_usage(failed.ticket, ALL)
    assert made.director.on_end(first.ticket, Ending.NATURAL) == {"envoy.lb": {"cost": 42}}
    assert made.director.on_end(first.ticket, Ending.NATURAL) == {}
    assert made.director.on_end(failed.ticket, Ending.ERROR) == {}
