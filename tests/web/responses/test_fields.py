"""Every field of the body is used or refused by name; null changes nothing."""

from dataclasses import replace

import msgspec
import pytest

from tests.web.openai.test_fields import BESIDE as CHAT_BESIDE
from tests.web.openai.test_fields import SAMPLES as CHAT_SAMPLES
from tests.web.openai.test_fields import sample_of
from tests.web.responses.serving_responses import Handlers, flat_tool
from weft.core.errors import BadRequest
from weft.schema.responses import ReasoningFields, ResponsesBody, ResponsesTool, TextFormat
from weft.web.http.problem import HttpError
from weft.web.inference.call import to_model_call
from weft.web.items.conversation_store import Conversations
from weft.web.responses.create import Creation
from weft.web.responses.unsupported import LABELS, REFUSED

INCLUDE = {"include": ["message.output_text.logprobs"]}
TOOLS = {"tools": [flat_tool()]}
# A value that changes something, where chat has none or means something else.
SAMPLES = {
    **CHAT_SAMPLES,
    "input": "another",
    "previous_response_id": "resp_x",
    "previous_input_messages": [{"role": "user", "content": "x"}],
    "store": False,
    "include": INCLUDE["include"],
    "max_output_tokens": 5,
    "max_tool_calls": 5,
    "tools": [flat_tool()],
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "truncation": "auto",
    "prompt_cache_retention": "forever",
    "access_programs": {"cyber": "standard"},
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_x",
    "image": {"context_compression": "auto"},
    "prompt": {"id": "x"},
    "client_metadata": {"session_id": "x"},
}
BESIDE = {
    **CHAT_BESIDE,
    # Alone it contradicts; what is in it is looked at below.
    "stream_options": ({}, {"include_usage": True}),
    "logprob_token_ids": (INCLUDE, [1]),
    "top_logprobs": (INCLUDE, 2),
    "tool_choice": (TOOLS, "required"),
    "include_reasoning": ({}, False),
    "background_options": ({}, {"completion_window": "soonest"}),
}
INNER = {
    "reasoning.effort": "low",
    "reasoning.summary": "detailed",
    "reasoning.generate_summary": "concise",
    "reasoning.context": "all_turns",
    "reasoning.mode": "pro",
    "text.verbosity": "low",
    "stream_options.include_usage": True,
    "stream_options.continuous_usage_stats": True,
    "stream_options.include_obfuscation": True,
}


async def outcome(served, fields):
    """All that a body becomes: the turn, and the response at its beginning."""
    handlers = Handlers(served)
    call = handlers.made("POST", "/v1/responses", {"input": "hello", **fields})
    creation = Creation(handlers.runs, Conversations(handlers.state.store))
    prepared = await creation.prepare(await to_model_call(call), call.body)
    response = msgspec.structs.replace(prepared.response, id="", created_at=0)
    return prepared.turn, response, prepared.logprobs and prepared.logprobs.chosen_ids


async def fate(served, name, companions, value):
    """What becomes of a field: "used", "refused" or "label"."""
    whole = msgspec.json.decode(msgspec.json.encode({**companions}))
    outer, _, inner = name.partition(".")
    changed = {**whole, outer: {inner: value} if inner else value}
    before = await outcome(served, companions)
    try:
        after = await outcome(served, changed)
    except (BadRequest, HttpError) as error:
        return "refused" if error.parameter == name else f"refused as {error.parameter}"
    return "label" if before == after else "used"


@pytest.mark.parametrize("field", msgspec.structs.fields(ResponsesBody), ids=lambda f: f.name)
def test_every_field_has_a_fate(field, echo, wait):
    """What changes nothing else is repeated in the response, but for notes of clients."""
    name = field.encode_name
    companions, value = BESIDE.get(name) or ({}, SAMPLES.get(name, sample_of(field)))
    assert value is not None, f"no sample for {name}"
    expected = {"label"} if name in LABELS else {"used", "refused"}
    assert wait(fate(echo, name, companions, value)) in expected


@pytest.mark.parametrize("name", sorted(INNER))
def test_every_inner_field_has_a_fate(name, echo, wait):
    """The same inside other fields; the parameter is the whole path."""
    companions = {"stream": True} if name.startswith("stream_options") else {}
    assert wait(fate(echo, name, companions, INNER[name])) in {"used", "refused"}


def test_inner_fields_are_all_known_here():
    """A new one has to be used or refused: these tests find out which."""
    fields = {field.name for field in msgspec.structs.fields(ReasoningFields)}
    assert fields == {name.partition(".")[2] for name in INNER if name.startswith("reasoning")}
    # Told again in the response, all of them; format and schema rule the text too.
    assert {field.name for field in msgspec.structs.fields(TextFormat)} == {
        "type", "name", "description", "schema", "strict",
    }  # fmt: skip
    assert {field.encode_name for field in msgspec.structs.fields(ResponsesTool)} == {
        "type", "name", "description", "parameters", "strict",
        "allowed_callers", "async", "defer_loading", "output_schema",
        "server_label", "server_url", "server_description", "allowed_tools", "require_approval",
        "authorization", "headers", "connector_id", "tunnel_id", "format", "tools",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(REFUSED) & set(ResponsesBody.__struct_fields__)))
def test_null_is_never_refused(name, echo, wait):
    """Clients send null for what they do not set."""
    assert wait(outcome(echo, {name: None})) == wait(outcome(echo, {}))


def test_truncation_auto_cuts_the_beginning_of_what_does_not_fit(echo, wait):
    """The answer's tokens keep their room, and an input that fits is whole."""
    turn, response, _ = wait(outcome(echo, {"truncation": "auto", "max_output_tokens": 5}))
    plain, _, _ = wait(outcome(echo, {"max_output_tokens": 5}))
    room = echo.client.info.limits.max_sequence_len - 5
    params = msgspec.structs.replace(plain.params, truncate_prompt_tokens=room)
    assert turn == replace(plain, params=params, truncation_side="left")
    assert response.truncation == "auto"


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "disabled"},
        {"service_tier": "auto"},
        {"reasoning": {"context": "auto", "mode": "standard"}},
        {"tools": [{"type": "web_search"}, {"type": "local_shell"}]},
        {"tools": [], "tool_choice": "auto"},
        {"text": {"format": {"type": "text"}}},
        {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
        {"something_new": 1},
    ],
)
def test_what_is_so_anyway_may_be_asked_for(fields, echo, wait):
    """Agents send such things with every request."""
    turn, response, _ = wait(outcome(echo, {}))
    other, answered, _ = wait(outcome(echo, fields))
    assert other == turn
    assert answered.status == response.status
