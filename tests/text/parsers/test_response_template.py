"""Families that a model describes itself."""

import pytest

from tests.text.parsers.taking_apart import cuts, feed_all, join
from weft.text.parsers.response_template import read_response_template
from weft.text.parsers.table import make_parser


def template(**fields) -> dict:
    """A template like those that models of the SmolLM3 kind ship."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>", "content": "text"},
            **fields,
        },
    }


def calls(**changes) -> dict:
    """The field of calls with some keys changed."""
    field = template()["fields"]["tool_calls"]
    return template(tool_calls={**field, **changes})


def take_apart(description: dict, text: str) -> list[list[tuple[str, ...]]]:
    """What a parser of the described families makes of a text, however it is cut."""
    families = read_response_template(description)
    assert families is not None
    return [
        join(
            feed_all(
                make_parser(families.reasoning, families.tool, end_markers=families.end_markers),
                pieces,
            )
        )
        for pieces in cuts(text)
    ]


def test_literal_marks_are_read():
    """Thoughts, calls, text and the end of the turn, as the description says."""
    text = (
        '<think>\nHm.</think>\n\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call><|im_end|>'
    )
    expected = [("r", "Hm."), ("call", "f", '{"a": 1}'), ("call", "g", "{}")]
    assert take_apart(template(), text) == [expected] * 3


def test_a_transform_may_rename_keys():
    """Cohere's calls are a list of objects with `tool_name` and `parameters`."""
    description = calls(
        open=["<|START_ACTION|>"],
        close=["<|END_ACTION|>"],
        transform_each=True,
        transform={
            "type": "function",
            "function": {"name": "{tool_name}", "arguments": "{parameters}"},
        },
    )
    text = 'Ok.<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>'
    assert take_apart(description, text) == [[("c", "Ok."), ("call", "f", '{"a": 1}')]] * 3


@pytest.mark.parametrize(
    "description",
    [
        None,
        {},
        {"fields": []},
        template(mood={"open": "<mood>", "close": "</mood>"}),
        template(thinking={"open_pattern": "<think>", "close": "</think>"}),
        template(thinking={"open": "<think>", "close": "</think>", "content": "json"}),
        template(thinking={"open": "<think>"}),
        template(thinking={"open": [1], "close": "</think>"}),
        template(reasoning={"open": "<think>", "close": "</think>"}),
        template(tool_calls=[]),
        calls(content="xml-inline"),
        calls(content_args={"unquoted_keys": True}),
        calls(open=""),
        calls(transform={"function": {"name": "{name}"}}),
        calls(transform={"function": {"name": "get", "arguments": "{content}"}}),
        calls(transform="{content}"),
    ],
)
def test_what_goes_beyond_literal_marks_is_left_to_the_table(description):
    """None rather than half of it, so that the family is chosen by the chat template instead."""
    assert read_response_template(description) is None
