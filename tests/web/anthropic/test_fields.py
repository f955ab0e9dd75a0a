"""Every field of every request is used, refused by name, or in the table of labels."""

from typing import Annotated, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.beta import BetaContentBlockParam
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaParams
from anthropic.types.message_create_params import MessageCreateParamsBase as Params

from tests.web.anthropic.calls import COUNT, HELLO, MESSAGES, filled, make_call, weather_tool
from tests.web.openai.test_fields import sample_of
from tests.web.serving import ECHO, serving
from weft.core.errors import BadRequest
from weft.core.values.media import MediaConfig
from weft.schema import anthropic as schema
from weft.web.anthropic.blocks import OF_ASSISTANT, OF_USER
from weft.web.anthropic.messages import to_shape, to_turn
from weft.web.anthropic.unsupported import LABELS, LABELS_ANYWHERE, REFUSED, REFUSED_BLOCKS
from weft.web.http.problem import HttpError
from weft.web.inference.call import to_model_call
from weft.web.options import ApiOptions

KNOWN_BLOCKS = {*OF_USER.structs, *OF_ASSISTANT.structs, *REFUSED_BLOCKS}
CACHED = {"type": "ephemeral", "ttl": "1h"}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}


def block(role, **fixed):
    """Where a block of that kind stands: in a message of that role."""
    return lambda fields: {"messages": [*HELLO, {"role": role, "content": [{**fixed, **fields}]}]}


def in_document(fields):
    """A document's parts, by their field."""
    source = {"type": "text", "data": "x"}
    return block("user", type="document")({"source": source, **fields})


def result(fields):
    """A result, behind the calls that it may be of."""
    calls = {"role": "assistant", "content": [TOOL_USE, {**TOOL_USE, "id": "c2"}]}
    returned = {"type": "tool_result", "tool_use_id": "c1", **fields}
    return {"messages": [calls, {"role": "user", "content": [returned]}]}


def tool_use(fields):
    """A call, and what came of it."""
    calls = {"role": "assistant", "content": [{**TOOL_USE, **fields}]}
    returned = {"type": "tool_result", "tool_use_id": fields.get("id", "c1")}
    return {"messages": [calls, {"role": "user", "content": [returned]}]}


def config(fields):
    """What the answer is to look like."""
    return {"output_config": {"format": {**FORMAT, **fields}}}


# By struct: a body that holds one with these fields, and with what it needs beside them.
PLACES = {
    schema.MessagesBody: lambda fields: fields,
    schema.MessageBody: lambda fields: {"messages": [{"role": "user", "content": "x", **fields}]},
    schema.TextBlock: block("user", type="text", text="x"),
    schema.DocumentBlock: in_document,
    schema.Source: lambda fields: in_document({"source": {"type": "text", "data": "x", **fields}}),
    schema.ImageSource: lambda fields: block("user", type="image")(
        {"source": {"type": "base64", "media_type": "image/png", "data": "AAAA", **fields}}
    ),
    schema.ImageBlock: block("user", type="image", source=IMAGE),
    schema.Citations: lambda fields: in_document({"citations": fields}),
    schema.SearchResultBlock: block(
        "user", type="search_result", source="x", title="x", content=[{"type": "text", "text": "x"}]
    ),
    schema.ThinkingBlock: block("assistant", type="thinking", thinking="x"),
    schema.RedactedThinkingBlock: block("assistant", type="redacted_thinking", data="x"),
    schema.ToolUseBlock: tool_use,
    schema.Caller: lambda fields: tool_use({"caller": {"type": "direct", **fields}}),
    schema.ToolResultBlock: result,
    schema.ToolReferenceBlock: lambda fields: result(
        {"content": [{"type": "tool_reference", "tool_name": "f", **fields}]}
    ),
    schema.CacheControl: lambda fields: {"cache_control": {"type": "ephemeral", **fields}},
    schema.ToolBody: lambda fields: {"tools": [weather_tool(**fields)]},
    schema.ToolChoiceBody: lambda fields: {
        "tools": [weather_tool()],
        "tool_choice": {"type": "auto", **fields},
    },
    schema.ThinkingBody: lambda fields: {"thinking": {"type": "adaptive", **fields}},
    schema.OutputConfig: lambda fields: {"output_config": fields},
    schema.OutputFormat: config,
}
# By struct and field: a value that changes something, where that is neither a flag nor any text, and what
# stands beside it before and after.
SAMPLES = {
    (schema.MessagesBody, "model"): "two",
    (schema.ImageBlock, "source"): {**IMAGE, "data": "AAAB"},
    (schema.ImageSource, "type"): "file",
    (schema.ImageSource, "media_type"): "image/svg",
    (schema.ImageSource, "data"): "AAAB",
    (schema.ImageSource, "url"): "http://host/",
    (schema.MessagesBody, "messages"): [{"role": "user", "content": "another"}],
    (schema.MessagesBody, "tools"): [weather_tool()],
    (schema.MessagesBody, "tool_choice"): {"type": "none"},
    (schema.MessagesBody, "thinking"): {"type": "disabled"},
    (schema.MessagesBody, "output_config"): {"effort": "low"},
    (schema.MessagesBody, "output_format"): FORMAT,
    (schema.MessagesBody, "billing_policy"): {"type": "x"},
    (schema.MessagesBody, "compaction"): {"type": "x"},
    (schema.MessagesBody, "context_management"): {"edits": [{"type": "x"}]},
    (schema.MessagesBody, "mcp_servers"): [{"name": "x"}],
    (schema.MessagesBody, "speed"): "fast",
    (schema.MessagesBody, "max_tokens"): 5,
    (schema.MessagesBody, "stop_sequences"): ["x"],
    (schema.MessagesBody, "temperature"): 0.5,
    (schema.MessagesBody, "top_k"): 3,
    (schema.MessagesBody, "top_p"): 0.5,
    (schema.MessagesBody, "metadata"): {"user_id": "x"},
    (schema.MessagesBody, "container"): "x",
    (schema.MessagesBody, "diagnostics"): {"previous_message_id": "x"},
    (schema.MessagesBody, "fallback_credit_token"): "x",
    (schema.MessagesBody, "fallbacks"): [{"model": "x"}],
    (schema.MessagesBody, "inference_geo"): "eu",
    (schema.MessagesBody, "service_tier"): "priority",
    (schema.MessagesBody, "thread"): {"type": "create"},
    (schema.MessageBody, "role"): "system",
    (schema.TextBlock, "citations"): [{"type": "char_location"}],
    (schema.DocumentBlock, "source"): {"type": "text", "data": "another"},
    (schema.DocumentBlock, "citations"): {"enabled": True},
    (schema.Source, "type"): "url",
    (schema.Source, "media_type"): "application/pdf",
    (schema.Source, "content"): ({"type": "content", "content": "x"}, "another"),
    (schema.SearchResultBlock, "content"): [{"type": "text", "text": "another"}],
    (schema.SearchResultBlock, "citations"): {"enabled": True},
    (schema.ToolUseBlock, "id"): "c9",
    (schema.ToolUseBlock, "input"): {"x": 1},
    (schema.ToolUseBlock, "caller"): {"type": "code_execution_20250825"},
    (schema.ToolUseBlock, "toolset_name"): "x",
    (schema.Caller, "type"): "code_execution_20250825",
    (schema.ToolResultBlock, "tool_use_id"): "c2",
    (schema.ToolResultBlock, "toolset_name"): "x",
    (schema.CacheControl, "type"): "ephemeral",
    (schema.CacheControl, "ttl"): "1h",
    (schema.ToolBody, "type"): "web_search_20250305",
    (schema.ToolBody, "input_schema"): {"type": "object"},
    (schema.ToolBody, "input_examples"): [{"unit": "c"}],
    (schema.ToolBody, "allowed_callers"): ["code_execution_20250825"],
    (schema.ToolChoiceBody, "type"): "any",
    (schema.ToolChoiceBody, "name"): ({"type": "tool", "name": "f"}, "get_weather"),
    (schema.ThinkingBody, "type"): "disabled",
    (schema.ThinkingBody, "budget_tokens"): ({"type": "enabled", "budget_tokens": 4}, 5),
    (schema.ThinkingBody, "display"): "omitted",
    (schema.OutputConfig, "effort"): "low",
    (schema.OutputConfig, "format"): FORMAT,
    (schema.OutputConfig, "task_budget"): {"type": "tokens", "total": 9},
    (schema.OutputFormat, "type"): "xml",
    (schema.OutputFormat, "schema"): {"type": "object", "properties": {"x": {}}},
}


def fields_of(struct):
    """Their names."""
    return [field.encode_name for field in msgspec.structs.fields(struct)]


ALL = [(struct, name) for struct in PLACES for name in fields_of(struct)]
IDS = [f"{struct.__name__}.{name}" for struct, name in ALL]


def labels_of(struct):
    """The names of those of its fields that change nothing."""
    own = {name for kind in struct.__mro__ for name in LABELS.get(kind, ())}
    return own | (LABELS_ANYWHERE.keys() & set(fields_of(struct)))


async def outcome(served, fields):
    """All that a body becomes."""
    call = await to_model_call(make_call(served, MESSAGES, filled(served, fields)))
    return to_turn(call, call.body), to_shape(call, call.body)


async def fate(struct, name):
    """What becomes of a field: "used", "refused" or "label"."""
    value = CACHED if name == "cache_control" else SAMPLES.get((struct, name))
    if value is None:
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        value = sample_of(fields[name], "another")
    assert value is not None, "no sample"
    beside, value = value if isinstance(value, tuple) else ({}, value)
    place = PLACES[struct]
    options = ApiOptions(reasoning_parser="qwen3")
    async with serving(ECHO, options=options, served_model_name=["one", "two"]) as served:
        if struct in (schema.ImageBlock, schema.ImageSource):
            served.client.model_config = msgspec.structs.replace(
                served.client.model_config, media=MediaConfig(max_items={"image": 1})
            )
        before = await outcome(served, place(beside))
        try:
            after = await outcome(served, place({**beside, name: value}))
        except (BadRequest, HttpError) as error:
            is_named = name in str(error) or struct is schema.Caller
            return "refused" if is_named else f"refused without its name: {error}"
    return "label" if before == after else "used"


@pytest.mark.parametrize(("struct", "name"), ALL, ids=IDS)
async def test_every_field_has_a_fate(struct, name):
    """A field that changes nothing is in the table of labels, and no other is."""
    expected = {"label"} if name in labels_of(struct) else {"used", "refused"}
    assert await fate(struct, name) in expected


def test_every_struct_of_a_request_has_its_place():
    """A new struct cannot be forgotten; answers have no fields to forget."""
    requested = {
        kind
        for kind in vars(schema).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__name__ not in ANSWERED
    }
    assert requested - {schema.PromptBody, schema.Typed} == PLACES.keys()


ANSWERED = msgspec.json.schema_components(
    [schema.MessageAnswer, schema.CountAnswer, schema.StreamEvent]
)[1]


def test_the_tables_name_fields_that_exist():
    """A field that is removed takes its row along, and none is in both tables."""
    for table in (LABELS, REFUSED):
        for struct, rows in table.items():
            assert rows.keys() <= set(fields_of(struct))
    for struct in LABELS.keys() & REFUSED.keys():
        assert not LABELS[struct].keys() & REFUSED[struct].keys()


async def test_edits_that_leave_a_conversation_as_it_is_change_nothing(echoing):
    """Claude Code asks for this one with every request; others are refused, as `SAMPLES` has it."""
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert await outcome(echoing, {"context_management": edits}) == await outcome(echoing, {})


async def test_null_is_the_same_as_absent(echoing):
    """Clients send null for what they do not set."""
    plain = await outcome(echoing, {})
    needed = {"model", "messages", "max_tokens"}
    nulls = dict.fromkeys(set(fields_of(schema.MessagesBody)) - needed)
    assert await outcome(echoing, nulls) == plain


async def test_unknown_fields_are_ignored(echoing):
    """Clients send what newer and other servers know."""
    assert await outcome(echoing, {"something_new": 1}) == await outcome(echoing, {})


def test_a_count_knows_the_fields_of_a_prompt():
    """The same body can be counted, whatever of it a count has no use for."""
    body = {"model": "x", "messages": HELLO, "max_tokens": 5, "stream": True}
    assert make_call(None, COUNT, body).body.messages[0].content == "hello"


def kinds_of(typed):
    """The `type` of every member of a union of the client's types."""
    if is_typeddict(typed):
        return {get_args(get_type_hints(typed)["type"])[0]}
    if isinstance(typed, type):
        return set()  # an answer's own block, of a kind that requests may have too
    members = get_args(typed)[:1] if get_origin(typed) is Annotated else get_args(typed)
    return {kind for member in members for kind in kinds_of(member)}


def test_every_field_and_block_that_the_official_client_types_is_known():
    """The stable API and the beta; what the client sends as headers is none of the body's."""
    in_headers = {"betas", "user_profile_id", "workspace_id"}
    typed = {*Params.__annotations__, *BetaParams.__annotations__} - in_headers
    assert typed <= set(fields_of(schema.MessagesBody))
    assert kinds_of(ContentBlockParam) | kinds_of(BetaContentBlockParam) <= KNOWN_BLOCKS
