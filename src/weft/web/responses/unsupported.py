"""Fields and values of the Responses API that are refused, with reasons."""

from collections.abc import Mapping
from typing import Any

from weft.core.errors import BadRequest
from weft.schema.responses import ReasoningFields, ResponsesBody, ResponsesTool
from weft.text.content import Place
from weft.web.inference.fields import REFUSED as REFUSED_BY_CHAT
from weft.web.inference.fields import refuse_unsupported
from weft.web.items.client_tools import CLIENT_TYPES, PASSED_OVER

# Accepted with any value, and not returned in the response.
LABELS: Mapping[str, str] = {"client_metadata": "information of Codex about its session"}
# `metadata`, `user`, `safety_identifier` and `prompt_cache_key` are only returned in the response.
_OWN: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "access_programs": (({},), "access programs are not supported"),
    "context_management": (([],), "contexts are not compacted"),
    "enable_response_messages": ((False,), "prompts are not repeated in answers"),
    "image": (({},), "this server takes text only"),
    "max_tokens": ((), "use max_output_tokens"),
    "n": ((1,), "a response is one answer"),
    "prompt": ((), "prompt templates are not stored"),
    "prompt_logprobs": ((), "responses contain no logprobs of the prompt"),
    "request_id": ((), "a response's id is the server's own; X-Request-Id labels the request"),
    "response_format": ((), "use text.format"),
}
# Fields that chat completions refuse and this API supports.
_MEANT = frozenset(("store", "mm_processor_kwargs"))
REFUSED = {**{name: row for name, row in REFUSED_BY_CHAT.items() if name not in _MEANT}, **_OWN}

_REASONING: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "context": (("auto",), "the chat template decides which earlier reasoning is in the prompt"),
    "mode": (("standard",), "there is one mode"),
    "summary": (("auto", "concise", "detailed"), "reasoning is written in full"),
    "generate_summary": (("auto",), "reasoning is written in full"),
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TOOL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "allowed_callers": (
        (["direct"],),
        "tool calls by programs are not supported; the model calls tools",
    ),
    "async": ((False,), "the client sends a call's output in its next request"),
    "connector_id": (
        (),
        "connectors are not supported; name the MCP server by server_url or server_label",
    ),
    "output_schema": ((), "outputs of tools are not checked against a schema"),
    "tunnel_id": (
        (),
        "tunnels are not supported; name the MCP server by server_url or server_label",
    ),
}
# Fields that only tools of servers have; the others are for functions only.
_OF_SERVERS = frozenset(
    "server_label server_url server_description allowed_tools require_approval authorization headers "
    "connector_id tunnel_id".split()
)
_OWN_FIELDS: Mapping[str, frozenset[str]] = {
    "function": frozenset(("name", "description", "parameters", "strict")),
    "custom": frozenset(("name", "description", "format")),
    "namespace": frozenset(("name", "description", "tools")),
    "mcp": _OF_SERVERS,
}
_OF_SOME = frozenset().union(*_OWN_FIELDS.values())
# Other values belong to tools that are not offered, and add nothing. Reasoning is returned as text, so its encrypted
# form is not needed.
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(
    (
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    )
)
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512


def check_body(body: ResponsesBody) -> None:
    """Raises `BadRequest` for the first field that requests an unsupported feature, or contradicts another field."""
    refuse_unsupported(body, REFUSED)
    if body.truncation not in (None, "auto", "disabled"):
        raise BadRequest(
            "truncation", f"truncation must be auto or disabled, got {body.truncation[:40]!a}"
        )
    _check_reasoning(body.reasoning or ReasoningFields())
    check_metadata(body.metadata or {})
    if body.max_tool_calls is not None and body.max_tool_calls < 1:
        raise BadRequest(
            "max_tool_calls", f"max_tool_calls must be at least 1, got {body.max_tool_calls}"
        )
    check_include(body.include or ())
    if body.stream_options is not None:
        if not body.stream:
            raise BadRequest("stream_options", "stream_options needs stream to be true")
        for name in body.stream_options.__struct_fields__:
            if getattr(body.stream_options, name):
                raise BadRequest(
                    f"stream_options.{name}",
                    f"stream_options.{name} must be absent or false: the last event holds the usage, "
                    "and nothing is obfuscated",
                )
    if body.background and body.store is False:
        raise BadRequest("background", "background needs store: its response is fetched later")
    _check_background_options(body)
    if body.conversation is not None:
        _check_conversation(body)
    if body.previous_response_id is not None and body.previous_input_messages:
        raise BadRequest(
            "previous_input_messages",
            "previous_input_messages and previous_response_id exclude each other: each holds the earlier conversation",
        )


def _check_conversation(body: ResponsesBody) -> None:
    for name in ("previous_response_id", "previous_input_messages"):
        if getattr(body, name):
            raise BadRequest(
                "conversation",
                f"conversation and {name} exclude each other: each holds the earlier conversation",
            )


def _check_background_options(body: ResponsesBody) -> None:
    options = body.background_options
    if options is None:
        return
    if not body.background:
        raise BadRequest("background_options", "background_options needs background to be true")
    if options.completion_window not in (None, "soonest"):
        raise BadRequest(
            "background_options.completion_window",
            'background_options.completion_window must be "soonest": responses begin as soon as there is room; '
            f"/v1/batches runs behind other requests; got {options.completion_window[:40]!a}",
        )
    label = options.continuation_id
    if label is not None and len(label) > MAX_METADATA_CHARS:
        raise BadRequest(
            "background_options.continuation_id",
            f"background_options.continuation_id takes at most {MAX_METADATA_CHARS} characters",
        )


_NEEDS_STORE = ("background", "conversation", "previous_response_id", "store")


def check_store(body: ResponsesBody) -> None:
    """Refuses fields that need stored responses, if the server does not store them."""
    for name in _NEEDS_STORE:
        if getattr(body, name) not in (None, False):
            raise BadRequest(
                name,
                f"{name} needs --store-file at a server with --api-server-count above 1: without it, its API servers "
                "share no responses; give the conversation in input",
            )


def check_include(names: list[str] | tuple[str, ...]) -> None:
    """Refuses values that no response can include."""
    for name in names:
        if name not in INCLUDABLE:
            raise BadRequest(
                "include",
                f"include takes {', '.join(sorted(INCLUDABLE))}, got {name[:60]!a}",
            )


def check_tool(tool: ResponsesTool, place: Place) -> None:
    """Refuse a tool that is neither a plain function nor a server of tools."""
    if tool.type in PASSED_OVER:
        return
    own = _OWN_FIELDS.get(tool.type)
    if own is None:
        raise place.error(
            f": tools of type {tool.type[:40]!a} are not offered; there are "
            f"{', '.join(_OWN_FIELDS)}"
        )
    for name in tool.__struct_fields__:
        if name in _OF_SOME - own and getattr(tool, name) is not None:
            raise place.error(f".{name} does not go with a tool of type {tool.type}")
    if tool.type in CLIENT_TYPES and tool.name is None:
        raise place.error(".name is missing")
    for position, inner in enumerate(tool.tools or ()):
        if inner.type not in ("function", "custom"):
            raise place.field("tools")[position].error(".type must be function or custom")
        check_tool(inner, place.field("tools")[position])
    refuse_unsupported(tool, _TOOL, at=place.path, parameter=place.parameter)


def _check_reasoning(reasoning: ReasoningFields) -> None:
    if reasoning.effort is not None and reasoning.effort not in _EFFORTS:
        raise BadRequest(
            "reasoning.effort",
            f"reasoning.effort must be one of {', '.join(_EFFORTS)}, got {reasoning.effort[:40]!a}",
        )
    refuse_unsupported(reasoning, _REASONING, at="reasoning")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuses metadata beyond the API's limits."""
    if len(metadata) > MAX_METADATA:
        raise BadRequest(
            "metadata", f"metadata takes at most {MAX_METADATA} pairs, got {len(metadata)}"
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_CHARS:
            raise BadRequest(
                "metadata",
                f"metadata takes keys of at most {MAX_METADATA_KEY_CHARS} characters and values of "
                f"at most {MAX_METADATA_CHARS}",
            )
