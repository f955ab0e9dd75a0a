"""What a body cannot request: refused before anything begins, with the field's name."""

import asyncio

import openai
import pytest

from tests.web.responses.serving_responses import Handlers, flat_tool
from weft.core.errors import BadRequest
from weft.web.http.problem import HttpError

TOOL = flat_tool()
LOGPROBS = {"include": ["message.output_text.logprobs"]}


@pytest.mark.parametrize(
    ("parameter", "fields"),
    [
        ("background", {"background": True, "store": False}),
        ("previous_response_id", {"previous_response_id": "resp_x"}),
        (
            "previous_input_messages",
            {
                "previous_response_id": "x",
                "previous_input_messages": [{"role": "user", "content": "x"}],
            },
        ),
        ("previous_input_messages", {"previous_input_messages": [{"role": "x", "content": "x"}]}),
        (
            "previous_input_messages",
            {"previous_input_messages": [{"role": "assistant", "tool_calls": 5}]},
        ),
        ("conversation", {"conversation": "conv_x", "previous_response_id": "resp_x"}),
        (
            "conversation",
            {
                "conversation": {"id": "conv_x"},
                "previous_input_messages": [{"role": "user", "content": "x"}],
            },
        ),
        ("background_options", {"background_options": {}, "background": False}),
        (
            "background_options.completion_window",
            {"background_options": {"completion_window": "8h"}, "background": True},
        ),
        (
            "background_options.continuation_id",
            {"background_options": {"continuation_id": "x" * 513}, "background": True},
        ),
        ("input", {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
        ("input", {"input": [{"type": "compaction", "encrypted_content": "weft1.***"}]}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"self": 1}}),
        ("input", {"input": []}),
        ("input", {"input": "x" * 5000}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("max_output_tokens", {"max_output_tokens": 5000}),
        ("top_logprobs", {"top_logprobs": 21, **LOGPROBS}),
        ("top_logprobs", {"top_logprobs": -1, **LOGPROBS}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("include", {"include": ["x"]}),
        ("reasoning.effort", {"reasoning": {"effort": "enormous"}}),
        ("reasoning.summary", {"reasoning": {"summary": "brief"}}),
        ("text.format", {"text": {"format": {"type": "xml"}}}),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
        (
            "structured_outputs",
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "x"}},
        ),
        ("metadata", {"metadata": {str(number): "x" for number in range(17)}}),
        ("metadata", {"metadata": {"x" * 65: "x"}}),
        ("metadata", {"metadata": {"x": "x" * 513}}),
        ("priority", {"priority": 1}),
        ("temperature", {"temperature": 3}),
        ("tools", {"tools": [{"type": "mcp", "server_label": "x"}]}),
        ("tools", {"tools": [{"type": "magic"}]}),
        ("tools", {"tools": [{"type": "custom"}]}),
        ("tools", {"tools": [{"type": "custom", "name": "x", "parameters": {}}]}),
        ("tools", {"tools": [{"type": "namespace", "name": "x", "tools": [{"type": "mcp"}]}]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{**TOOL, "async": True}]}),
        ("tools", {"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}),
        ("tools", {"tools": [TOOL, {**TOOL, "description": "x"}], "tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "perhaps"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "x"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "x"}}),
        (
            "tool_choice",
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "g"}],
                },
            },
        ),
        (
            "tool_choice",
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "mcp", "server_label": "x"}],
                },
            },
        ),
    ],
)
def test_the_field_at_fault_is_named(parameter, fields, echo, wait):
    """Streamed, in the background or in one piece; and no response is left behind."""
    handlers = Handlers(echo)
    for way in ({}, {"stream": True}, {"background": True}):
        with pytest.raises(BadRequest) as refused:
            wait(handlers.create(**{"input": "hello", **way, **fields}))
        assert refused.value.parameter == parameter
    assert not handlers.runs.open()
    assert wait(handlers.num_stored()) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_output_tokens": 0},
        {"max_output_tokens": 5000},
        {"max_output_tokens": 2, "min_tokens": 3},
    ],
)
def test_a_refusal_speaks_of_this_apis_fields(fields, echo, wait):
    """Its text as well: there is no max_tokens here that a caller could mend."""
    with pytest.raises(BadRequest) as refused:
        wait(Handlers(echo).create(input="hello", **fields))
    assert "max_output_tokens" in str(refused.value)
    assert " max_tokens" not in f" {refused.value}"


async def test_a_model_without_parsers_makes_no_calls_of_its_own_choice(echoing):
    """As in chat: nothing here could find them in what it writes."""
    with pytest.raises(BadRequest, match="tool-call parser") as refused:
        await Handlers(echoing).create(input="hello", tools=[TOOL])
    assert refused.value.parameter == "tool_choice"


def test_a_schema_that_the_engine_cannot_follow_is_the_formats_fault(echo, wait):
    """It is found late: who waits gets the error as of any field, and in the background the response fails."""
    request = {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": 1}}}}
    handlers = Handlers(echo)
    for way in (handlers.create, handlers.stream):
        with pytest.raises(BadRequest) as refused:
            wait(way(**request))
        assert refused.value.parameter == "text.format"
    queued = wait(handlers.create(**request, background=True, stream=False))
    while handlers.runs.open():
        wait(asyncio.sleep(0.01))
    failed = wait(handlers.of("GET", queued["id"]))
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "invalid_prompt"


@pytest.mark.parametrize("call", ["input_tokens", "compact"])
@pytest.mark.parametrize(
    ("parameter", "body"),
    [
        ("input", {"input": []}),
        ("input", {}),
        ("input", {"input": 5}),
        ("input", {"input": [{"role": "x", "content": "x"}]}),
        ("previous_response_id", {"input": "x", "previous_response_id": "resp_x"}),
        ("conversation", {"input": "x", "conversation": "conv_x"}),
        ("tools", {"input": "x", "tools": [{"type": "x"}]}),
        ("truncation", {"input": "x", "truncation": "x"}),
        ("image", {"input": "x", "image": {"x": 1}}),
        ("model", {"input": "x", "model": "x"}),
    ],
)
def test_calls_about_a_conversation_name_the_field_at_fault(call, parameter, body, client):
    """As the status and the error of a response would."""
    with pytest.raises(openai.APIStatusError) as refused:
        client.post(f"/responses/{call}", body=body, cast_to=object)
    assert refused.value.param == parameter


def test_options_of_a_stream_need_one(echo, wait):
    """Even where they change nothing."""
    with pytest.raises(BadRequest) as refused:
        wait(Handlers(echo).create(input="x", stream_options={"include_obfuscation": False}))
    assert refused.value.parameter == "stream_options"


@pytest.mark.parametrize(
    ("parameter", "method", "action", "query"),
    [
        ("starting_after", "GET", "", {"starting_after": "1"}),
        ("starting_after", "GET", "", {"stream": "true", "starting_after": "-1"}),
        ("starting_after", "GET", "", {"stream": "true", "starting_after": "x"}),
        ("stream", "GET", "", {"stream": "yes"}),
        ("stream", "GET", "", {"stream": "true"}),
        ("include", "GET", "", {"include[]": "x"}),
        ("include_obfuscation", "GET", "", {"include_obfuscation": "true"}),
        ("limit", "GET", "/input_items", {"limit": "0"}),
        ("limit", "GET", "/input_items", {"limit": "101"}),
        ("order", "GET", "/input_items", {"order": "up"}),
        ("response_id", "POST", "/cancel", {}),
    ],
)
def test_a_query_at_fault_is_named(parameter, method, action, query, echo, wait):
    """Of a response that was made in one piece."""
    handlers = Handlers(echo)
    made = wait(handlers.create(input="hello", max_output_tokens=1))
    with pytest.raises(BadRequest) as refused:
        wait(handlers.of(method, made["id"], action, **query))
    assert refused.value.parameter == parameter


@pytest.mark.parametrize(
    ("method", "action"),
    [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")],
)
def test_an_unknown_response_is_not_found(method, action, echo, wait):
    """Whatever is requested of it."""
    with pytest.raises(HttpError, match="Response with id 'resp_x' not found") as missing:
        wait(Handlers(echo).of(method, "resp_x", action))
    assert (missing.value.status, missing.value.parameter) == (404, "response_id")


def test_a_clients_own_item_ids_are_no_references(echo, wait):
    """They might be guessed by another; only ids of our making are found."""
    item = {"id": "msg_1", "type": "message", "role": "user", "content": "secret"}
    handlers = Handlers(echo)
    wait(handlers.create(input=[item], max_output_tokens=1))
    with pytest.raises(BadRequest, match="no stored item"):
        wait(handlers.create(input=[{"type": "item_reference", "id": "msg_1"}]))
