"""Conversations go on whatever is in their history: each form that a template refuses becomes one that it takes."""

import json
import re

import pytest

from tests.text.template_patterns import InProcess, distinct_facts, pattern
from weft.text.parsers.parts import Arguments, ToolCall
from weft.text.parsers.table import make_output_parser
from weft.text.templates.history import normalise_messages, short_id
from weft.text.templates.template_facts import TemplateFacts
from weft.text.templates.written_calls import family_of


def call(call_id, arguments):
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def text_part(text):
    return {"type": "text", "text": text}


# What agents send: two systems, parts, calls with ids of elsewhere, one cut off, reminders, text beside results.
TALK = [
    {"role": "system", "content": "sys1"},
    {"role": "system", "content": [text_part("sys2")]},
    {"role": "user", "content": [text_part("user1"), text_part("user2")]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("call_4711", '{"key": "value1"}'), call("toolu_01", '{"key": "val')],
    },
    {"role": "tool", "tool_call_id": "call_4711", "content": [text_part("result1")]},
    {"role": "tool", "tool_call_id": "toolu_01", "content": "result2"},
    {"role": "user", "content": "user3"},
    {"role": "user", "content": "user4"},
    {"role": "assistant", "content": "answer1"},
    {"role": "system", "content": "sys3"},
    {"role": "user", "content": "user5"},
]
WORDS = "sys1 sys2 sys3 user1 user2 user3 user4 user5 value1 result1 result2 answer1".split()


@pytest.mark.parametrize("facts", distinct_facts().values(), ids=distinct_facts().keys())
def test_no_template_refuses_what_agents_send(facts):
    """Every word reaches the prompt, of every kind of template that was published with a model."""
    text = InProcess(pattern(facts)).render(TALK)
    assert [word for word in WORDS if word not in text] == []


@pytest.mark.parametrize(
    ("given", "as_object", "as_text"),
    [
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ({"a": "é"}, {"a": "é"}, '{"a": "é"}'),
        ('{"city": "Pa', {}, "{}"),
        ("[1]", {}, "{}"),
        ("", {}, "{}"),
        (None, {}, "{}"),
    ],
)
def test_arguments_have_the_form_that_the_template_joins(given, as_object, as_text):
    """An object, or its JSON text; what is no object is an empty one, and the conversation goes on."""
    messages = [{"role": "assistant", "tool_calls": [call("c", given)]}]
    for_objects = normalise_messages(messages, TemplateFacts())
    for_text = normalise_messages(messages, TemplateFacts(takes_argument_text=True))
    assert for_objects[0]["tool_calls"][0]["function"]["arguments"] == as_object
    assert for_text[0]["tool_calls"][0]["function"]["arguments"] == as_text


def test_short_ids_are_nine_letters_and_digits_and_always_the_same():
    """A call and its result keep one id; one that has the form already is left as it is."""
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", short_id("call_4711"))
    assert short_id("call_4711") == short_id("call_4711") != short_id("call_4712")
    assert short_id("abcDEF123") == "abcDEF123"


def test_calls_beside_text_stay_where_a_template_writes_them_alone():
    """The text becomes a message of its own before the call."""
    message = {"role": "assistant", "content": "Wait.", "tool_calls": [call("c", "{}")]}
    text, calling = normalise_messages([message], TemplateFacts(needs_null_content=True))
    assert (text["content"], "tool_calls" in text) == ("Wait.", False)
    assert (calling["content"], len(calling["tool_calls"])) == (None, 1)


def test_parallel_calls_follow_each_other_where_a_template_takes_one_at_once():
    """Each call has its own result behind it."""
    calls = [call("a", "{}"), call("b", "{}")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("b", "a", "x")]
    messages = [{"role": "assistant", "content": "Wait.", "tool_calls": calls}, *results]
    normal = normalise_messages(messages, TemplateFacts(takes_parallel_calls=False))
    assert [(message["role"], message["content"]) for message in normal] == [
        ("assistant", "Wait."),
        ("tool", "a"),
        ("assistant", ""),
        ("tool", "b"),
        ("tool", "x"),
    ]


CALLS = {"role": "assistant", "content": "Wait.", "tool_calls": [call("c1", '{"key": "é"}')]}


@pytest.mark.parametrize(
    ("parser", "written"),
    [
        (None, '<tool_call>\n{"name": "f", "arguments": {"key": "é"}}\n</tool_call>'),
        ("lfm2", "<|tool_call_start|>[f(key='é')]<|tool_call_end|>"),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"key": "é"}}]'),
        ("llama3_json", '{"name": "f", "parameters": {"key": "é"}}'),
        ("glm45", '<tool_call>\n{"name": "f", "arguments": {"key": "é"}}\n</tool_call>'),
    ],
)
def test_calls_that_a_template_does_not_write_are_texts_of_the_model(parser, written):
    """In the form of the model's parser where that is JSON or Python, which reads the same call again."""
    facts, family = TemplateFacts(writes_calls=False), family_of("", parser)
    (message,) = normalise_messages([CALLS], facts, family)
    assert message == {"role": "assistant", "content": f"Wait.\n{written}"}
    if parser in ("lfm2", "granite", "llama3_json"):
        reader = make_output_parser(reasoning=None, tool=parser)
        parts = [*reader.feed(written), *reader.finish()]
        assert parts[0] == ToolCall(0, "f")
        arguments = "".join(part.text for part in parts if isinstance(part, Arguments))
        assert json.loads(arguments) == {"key": "é"}


def test_results_that_a_template_does_not_write_are_texts_of_the_user():
    """Parts stay parts where the user's are; the order of calls and results stays."""
    result = {"role": "tool", "tool_call_id": "c1", "content": [text_part("a"), text_part("b")]}
    facts = TemplateFacts(writes_calls=False, takes_results=False, takes_two_users=False)
    _, written = normalise_messages([CALLS, result, {"role": "user", "content": "So?"}], facts)
    assert written == {
        "role": "user",
        "content": "<tool_response>\na\nb\n</tool_response>\n\nSo?",
    }
    facts = TemplateFacts(takes_results=False, part_roles=frozenset({"user"}))
    _, written = normalise_messages([CALLS, result], facts)
    assert [part["text"] for part in written["content"]] == [
        "<tool_response>", "a", "b", "</tool_response>",
    ]  # fmt: skip


def test_a_template_that_takes_everything_gets_everything_as_it_is():
    """No order is changed that the template does not refuse."""
    normal = normalise_messages(TALK, TemplateFacts())
    assert [message["role"] for message in normal] == [message["role"] for message in TALK]
