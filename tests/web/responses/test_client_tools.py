"""Tools of the client's that are no plain functions: the model calls functions, and the client gets its own words."""

import json

import pytest

from tests.web.openai.calls import client_of
from tests.web.responses.serving_responses import Handlers, flat_tool
from tests.web.serving import ECHO, QWEN, SCRIPT, serving
from weft.schema.responses import ResponsesTool
from weft.web.items.client_tools import to_functions, to_input

PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files."}
FILES = {
    "type": "namespace",
    "name": "mcp__fs",
    "description": "Files.",
    "tools": [flat_tool("read")],
}
SEARCH = {"type": "web_search"}


def asked(name, **arguments):
    """An input that the model repeats as its answer: a call."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


HELLO = {"role": "user", "content": "Hi"}


@pytest.fixture
async def handlers():
    async with serving(ECHO, options=QWEN, template=SCRIPT) as served:
        yield Handlers(served)


async def test_a_tool_of_a_namespace_is_called_by_both_names(handlers):
    """The model knows one name; the item has the client's two, and goes back as it came."""
    first = await handlers.create(input=asked("mcp__fs__read", path="a"), tools=[FILES, SEARCH])
    (call,) = first["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "read", "mcp__fs")
    assert json.loads(call["arguments"]) == {"path": "a"}
    assert [tool["type"] for tool in first["tools"]] == ["namespace"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "text"}
    second = await handlers.create(input=[HELLO, call, result], tools=[FILES])
    assert second["status"] == "completed"


async def test_a_custom_tool_is_called_with_text(handlers):
    """Its input is the one argument of what the model called; whole and streamed, and given back."""
    given = asked("apply_patch", input="*** Begin\nü")
    first = await handlers.create(input=given, tools=[PATCH])
    (call,) = first["output"]
    assert (call["type"], call["name"], call["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\nü",
    )
    events = await handlers.stream(input=given, tools=[PATCH])
    by_type = {event["type"]: event for event in events}
    assert by_type["response.custom_tool_call_input.done"]["input"] == "*** Begin\nü"
    assert by_type["response.output_item.done"]["item"]["input"] == "*** Begin\nü"
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    second = await handlers.create(input=[HELLO, call, result], tools=[PATCH])
    assert second["status"] == "completed"


async def test_a_past_command_is_read(handlers):
    """What a client ran for another model is a call and its result to this one."""
    call = {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}}
    result = {"type": "local_shell_call_output", "call_id": "c1", "output": "a b"}
    made = await handlers.create(input=[HELLO, call, result])
    assert made["status"] == "completed"


async def test_a_tool_that_nobody_can_call_is_left_out_and_said_so():
    """The answer's header names it; the request is served."""
    async with client_of(ECHO, options=QWEN, template=SCRIPT) as (client, _):
        made = await client.responses.with_raw_response.create(
            model=ECHO, input="Hi", tools=[SEARCH], max_output_tokens=4
        )
    assert "the tool web_search is left out" in made.headers["warning"]
    assert made.parse().tools == []


async def test_items_that_are_left_out_are_named():
    """Each kind once, in the answer's header; the conversation goes on."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    async with client_of(ECHO, options=QWEN, template=SCRIPT) as (client, _):
        made = await client.responses.with_raw_response.create(
            model=ECHO,
            input=[HELLO, search, search, sealed],
            max_output_tokens=4,
            extra_body={"client_metadata": {"session_id": "1"}},
        )
    assert made.headers["warning"] == (
        '299 - "web_search_call is removed from the input: the model of this server cannot read it", '
        '299 - "encrypted reasoning is removed from the input: the model of this server cannot read it"'
    )


def test_a_grammar_is_told_to_the_model():
    """It is not held: the model reads it in the description."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    (function,) = to_functions(ResponsesTool(**PATCH, format=grammar))
    assert (
        function.description == 'Changes files.\n\nThe input follows this lark grammar:\nstart: "a"'
    )
    assert list(function.parameters["properties"]) == ["input"]


@pytest.mark.parametrize("arguments", ['{"input": "a', "[]", '{"input": 1}'])
def test_arguments_without_an_input_are_the_input_themselves(arguments):
    """Nothing that the model wrote is lost."""
    assert to_input(arguments) == arguments
