"""Anthropic's messages in the shape that templates are written for."""

import json

import msgspec
import pytest

from weft.core.errors import BadRequest
from weft.schema.anthropic import PromptBody
from weft.web.anthropic.conversation import is_prefill, to_messages
from weft.web.anthropic.tools import to_tools
from weft.web.chat.tools import listed_tools

PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def user(*content):
    """What the user said: text alone, or blocks."""
    return {
        "role": "user",
        "content": content[0] if content and isinstance(content[0], str) else content,
    }


def assistant(*content):
    """What the assistant said."""
    return {**user(*content), "role": "assistant"}


def text(value):
    """A block of text."""
    return {"type": "text", "text": value}


def call(call_id="c1", name="f", **fields):
    """A call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": fields}


def result(call_id="c1", **fields):
    """What a call came to."""
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def converted(*messages, **fields):
    """What reaches the template."""
    body = msgspec.json.decode(
        json.dumps({"model": "m", "messages": list(messages), **fields}), type=PromptBody
    )
    return to_messages(body, tools=to_tools(body))


def refusal(*messages, **fields):
    """Why a conversation is not taken, and the field at fault."""
    with pytest.raises(BadRequest) as caught:
        converted(*messages, **fields)
    return caught.value.parameter, str(caught.value)


def test_a_system_prompt_comes_first_its_blocks_joined():
    """With nothing between them; an empty one is none."""
    said = {"role": "system", "content": "ab"}
    assert converted(user("x"), system=[text("a"), text("b")])[0] == said
    assert converted(user("x"), system="ab")[0] == said
    assert converted(user("x"), system="") == [{"role": "user", "content": "x"}]


def test_a_system_message_may_stand_in_the_conversation():
    """Where it stands."""
    messages = converted(user("x"), {"role": "system", "content": "s"}, user("y"))
    assert [message["role"] for message in messages] == ["user", "system", "user"]


def test_one_block_of_text_is_its_text_and_several_are_parts():
    """Templates that want strings get them joined by lines."""
    assert converted(user(text("a"))) == [{"role": "user", "content": "a"}]
    assert converted(user(text("a"), text("b")))[0]["content"] == [text("a"), text("b")]


def test_neighbours_of_one_role_are_one_message():
    """Many templates insist on turns, and the published API joins them."""
    messages = converted(user("a"), user("b"), assistant("c"), assistant("d"), user("e"))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "cd"


def test_an_assistant_that_said_nothing_is_left_out():
    """Empty answers come back as they were given."""
    messages = converted(user("a"), assistant(text("")), user("b"))
    assert [message["role"] for message in messages] == ["user"]


def test_calls_and_results_keep_their_ids_and_names():
    """Results stand before the rest of what the user said, in their order."""
    messages = converted(
        user("x"),
        assistant(text("Let me see."), call("c1", "f", x=1), call("c2", "g")),
        user(
            text("Well?"), result("c2", content="two"), result("c1", content=[text("1"), text("!")])
        ),
    )
    assert messages[1]["content"] == "Let me see."
    assert [made["id"] for made in messages[1]["tool_calls"]] == ["c1", "c2"]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "c2", "name": "g", "content": "two"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "1\n!"},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [({}, ""), ({"content": ""}, ""), ({"content": "no", "is_error": True}, "Error: no")],
)
def test_a_failed_call_says_so_in_words(fields, content):
    """Templates have no other place for it; a result may be empty."""
    assert converted(assistant(call()), user(result(**fields)))[-1]["content"] == content


def test_thinking_is_the_reasoning_of_the_earlier_answer():
    """Whoever signed them; those that nobody can read are left out."""
    shown = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    messages = converted(user("x"), assistant(shown, hidden, text("y")), user("z"))
    assert messages[1] == {"role": "assistant", "content": "y", "reasoning": "Hm."}


def test_documents_and_search_results_are_read_as_text():
    """With what is known about them, and a beginning and an end."""
    plain = {"type": "text", "media_type": "text/plain", "data": "body"}
    document = {"type": "document", "source": plain, "title": "T", "context": "C"}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("a")]}
    parts = converted(user(document, found))[0]["content"]
    assert parts[0]["text"] == (
        "<document>\n<title>T</title>\n<context>C</context>\n"
        "<content>\nbody\n</content>\n</document>"
    )
    assert parts[1]["text"] == (
        "<search_result>\n<title>T</title>\n<source>S</source>\n"
        "<content>\na\n</content>\n</search_result>"
    )


def test_an_assistant_at_the_end_is_continued():
    """A prefill; one that calls tools waits for their results instead."""
    assert is_prefill(converted(user("x"), assistant("Sure: ")))
    assert not is_prefill(converted(user("x")))
    with pytest.raises(BadRequest, match="tool_result"):
        is_prefill(converted(user("x"), assistant(call())))


IMAGE = {"type": "image", "source": PNG}
PDF = {"type": "document", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "oracle", "content": "x"}], "messages[0].role"),
        ([user("")], "messages[0].content"),
        ([user()], "messages[0].content"),
        ([user("x"), user(IMAGE)], "messages[1].content[0]: blocks of type image"),
        ([user(PDF)], "messages[0].content[0].source.type"),
        ([user({"type": "document", "source": {"type": "text"}})], "source.data"),
        ([user({"type": "hologram"})], "messages[0].content[0].type"),
        ([user({"text": "x"})], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0]: Object missing"),
        ([user({"type": "text", "text": 5})], "messages[0].content[0]: Expected `str`"),
        ([user(call())], "messages[0].content[0].type"),
        ([assistant(result())], "messages[0].content[0].type"),
        ([user(result())], "messages[0].content[0].tool_use_id"),
        ([assistant(call()), user(result(), result())], "messages[1].content[1].tool_use_id"),
        ([assistant(call(), call())], "messages[0].content[1].id"),
        ([assistant(call()), user(result(content=[IMAGE]))], "content[0].content[0]: blocks of"),
        ([assistant(call()), user("x"), assistant("y"), user(result())], "tool_use_id"),
    ],
)
def test_what_cannot_be_read_is_refused_by_place(messages, place):
    """By message and block."""
    parameter, why = refusal(*messages)
    assert parameter == "messages"
    assert place in why


def test_a_system_prompt_is_text():
    """Nothing else has a place there."""
    parameter, why = refusal(user("x"), system=[IMAGE])
    assert parameter == "system"
    assert "system[0]: blocks of type image" in why


@pytest.mark.parametrize("number", ["1a2b3", "4c5d6"])
def test_claude_codes_billing_header_is_left_out(number):
    """It changes with each request: before the system prompt it would cost the whole prefix cache."""
    header = f"x-anthropic-billing-header: cc_version=2.1.100; cc_entrypoint=cli; cch={number};"
    system = [text(header), text("You are an agent.")]
    assert converted(user("hi"), system=system)[0] == {
        "role": "system",
        "content": "You are an agent.",
    }
    assert converted(user("hi"), system=header)[0]["role"] == "user"


def test_tools_that_a_search_found_are_read():
    """Claude Code searches among deferred tools: the result has the definition, and the list has it no more."""
    found = [{"type": "tool_reference", "tool_name": "read"}]
    conversation = assistant(call()), user(result(content=found))
    assert converted(*conversation)[-1]["content"] == "Tool found: read"
    read = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
    deferred = {**read, "defer_loading": True}
    assert converted(*conversation, tools=[read, {**read, "name": "f"}])[-1]["content"] == (
        "Tool found: read"
    )
    made = converted(*conversation, tools=[{**read, "name": "f"}, deferred])
    assert made[-1]["content"] == (
        '<functions>\n<function>{"name": "read", "description": "Reads.", '
        '"parameters": {"type": "object"}}</function>\n</functions>'
    )


def test_a_tool_is_listed_unless_a_result_defines_it():
    """One that is deferred and not found yet, or alone, is in the prompt's list."""
    found = user(result(content=[{"type": "tool_reference", "tool_name": "read"}]))
    searching, read = {"name": "f", "input_schema": {}}, {"name": "read", "input_schema": {}}
    deferred = {**read, "defer_loading": True}

    def listed(tools, *messages):
        body = {"model": "m", "messages": [assistant(call()), *messages], "tools": tools}
        made = to_tools(msgspec.json.decode(json.dumps(body), type=PromptBody))
        return [tool.name for tool in listed_tools(made)]

    assert listed([searching, deferred]) == ["f", "read"]
    assert listed([searching, deferred], found) == ["f"]
    assert listed([searching, read], found) == ["f", "read"]
    assert listed([deferred], found) == ["read"]
