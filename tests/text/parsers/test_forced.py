"""Answers that a grammar forces to be calls."""

import pytest

from tests.text.parsers.taking_apart import cuts, feed_all, join
from weft.text.parsers.forced import forced_parser
from weft.text.parsers.parts import Arguments, ToolCall
from weft.text.parsers.table import REASONING_PARSERS

QWEN = REASONING_PARSERS["qwen3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[{"name": "f", "parameters": {"a": "]"}}, {"name": "g", "parameters": {}}]',
            [("call", "f", '{"a": "]"}'), ("call", "g", "{}")],
        ),
        ('\n[ {"parameters":{"a":1},"name":"f"} ]\n', [("call", "f", '{"a":1}')]),
        ('[{"name": "f", "parameters": {"a": ', [("call", "f", '{"a": ')]),
        ('[{"name": "f"', [("c", '[{"name": "f"')]),
        ("[]", [("c", "[]")]),
        ("", []),
    ],
)
def test_a_required_call_is_read_from_the_list(text, expected):
    """The list that `tool_choice: required` makes the model write; cut off, what there is of it."""
    assert [join(feed_all(forced_parser(), pieces)) for pieces in cuts(text)] == [expected] * 3


def test_a_required_call_is_told_as_soon_as_its_parameters_begin():
    """The name comes once it is known to have arguments, and then piece by piece."""
    parser = forced_parser()
    assert parser.feed('[{"name": "f", "parameters": ') == []
    assert parser.feed('{"a"') == [ToolCall(0, "f"), Arguments(0, '{"a"')]
    assert parser.feed(": 1}}]") == [Arguments(0, ": 1}")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', [("call", "f", '{"a": 1}')]),
        ('\n {"a": ', [("call", "f", '{"a": ')]),
        (" ", []),
    ],
)
def test_a_named_call_is_the_whole_text(text, expected):
    """The text is the arguments; where there is none there is no call."""
    assert [join(feed_all(forced_parser("f"), pieces)) for pieces in cuts(text)] == [expected] * 3


@pytest.mark.parametrize("make", [forced_parser, lambda **options: forced_parser("f", **options)])
def test_thoughts_may_come_before_a_forced_call(make):
    """The grammar begins where the thoughts end; ids and end markers work as anywhere."""
    call = '{"a": 1}' if make is not forced_parser else '[{"name": "f", "parameters": {"a": 1}}]'
    parser = make(reasoning=QWEN, starts_in_reasoning=True, end_markers=["<|im_end|>"], first_id=2)
    parts = join(feed_all(parser, f"Hm.</think>\n\n{call}<|im_end|>"))
    assert parts == [("r", "Hm."), ("call", "f", '{"a": 1}', "functions.f:2")]
