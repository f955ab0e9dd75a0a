"""Fields and block types of Anthropic's API without effect here: refused with a reason, or accepted as labels."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from weft.schema.anthropic import (
    CacheControl,
    Citations,
    MessagesBody,
    OutputConfig,
    PromptBody,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolBody,
    ToolResultBlock,
    ToolUseBlock,
)
from weft.text.content import Place
from weft.web.http.endpoint import Deviation
from weft.web.http.problem import HttpError
from weft.web.inference import fields

_CACHE = "every prompt is looked up in the prefix cache, and stays in it as long as there is room"
_TOOLSETS = "toolsets exist only in Anthropic's service"
_NO_SERVERS = "this path calls no tool servers"

# Accepted with any value: they identify the caller, or describe earlier turns, and do not affect the answer.
LABELS: Mapping[type[msgspec.Struct], Mapping[str, str]] = {
    CacheControl: {"type": _CACHE, "ttl": _CACHE},
    MessagesBody: {
        "diagnostics": "the diagnostics are about Anthropic's cache",
        "metadata": "notes for the caller's own records",
    },
    PromptBody: {"speed": "all requests have the same speed"},
    RedactedThinkingBlock: {"data": "only the server that made the data can read it"},
    TextBlock: {"citations": "citations of earlier answers are not shown to the model"},
    ThinkingBlock: {"signature": "thinking is accepted with any signature"},
    ToolBody: {
        "defer_loading": "every tool is in the prompt, in its list or where a search has found it",
        "eager_input_streaming": "tool input is always streamed as the model writes it",
    },
}
# The same fields, in every struct that has them.
LABELS_ANYWHERE: Mapping[str, str] = {"cache_control": _CACHE}

# By name: the values that have no effect here, and why any other value is refused. Null is always accepted.
REFUSED: Mapping[type[msgspec.Struct], Mapping[str, tuple[tuple[Any, ...], str]]] = {
    PromptBody: {
        "billing_policy": ((), "nothing is billed"),
        "compaction": ((), "conversations are not compacted"),
        "context_management": (
            ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
            "conversations are never edited by the server",
        ),
        "mcp_servers": (([],), _NO_SERVERS),
    },
    MessagesBody: {
        "container": ((), "this server has no containers"),
        "fallback_credit_token": ((), "no other model answers in place of this one"),
        "fallbacks": (([],), "no other model answers in place of this one"),
        "inference_geo": ((), "the server runs in one place"),
        "service_tier": (("auto", "standard_only"), "all requests have the same service tier"),
    },
    OutputConfig: {"task_budget": ((), "the only supported budget is max_tokens")},
    Citations: {"enabled": ((False,), "citations are not offered")},
    ToolBody: {
        "allowed_callers": (
            (["direct"],),
            "tool calls by programs are not supported; the model calls tools",
        ),
    },
    ToolUseBlock: {"toolset_name": ((), _TOOLSETS)},
    ToolResultBlock: {"toolset_name": ((), _TOOLSETS)},
}

_TEXT_ONLY = "this server reads text only"
_SERVER_TOOL = "this server does not run tools"

# Known kinds of blocks, with the reason why they are refused.
REFUSED_BLOCKS: Mapping[str, str] = {
    "advisor_tool_result": _SERVER_TOOL,
    "bash_code_execution_tool_result": _SERVER_TOOL,
    "browser_state": _TOOLSETS,
    "code_execution_tool_result": _SERVER_TOOL,
    "compaction": "conversations are not compacted",
    "container_upload": "this server has no containers",
    "fallback": "no other model answers in place of this one",
    "image": _TEXT_ONLY,
    "mcp_tool_listing": _NO_SERVERS,
    "mcp_tool_result": _NO_SERVERS,
    "mcp_tool_use": _NO_SERVERS,
    "server_tool_use": _SERVER_TOOL,
    "text_editor_code_execution_tool_result": _SERVER_TOOL,
    "tool_addition": "tools stay the same through a conversation",
    "tool_removal": "tools stay the same through a conversation",
    "tool_search_tool_result": _SERVER_TOOL,
    "web_fetch_tool_result": _SERVER_TOOL,
    "web_search_tool_result": _SERVER_TOOL,
}


def refuse_unsupported(struct: msgspec.Struct, place: Place | None = None) -> None:
    """Raises `BadRequest` for the first field of `struct` that requests an unsupported feature.

    `place` is the struct's place; None for the body itself.
    """
    for kind in type(struct).__mro__:
        if kind in REFUSED:
            fields.refuse_unsupported(
                struct,
                REFUSED[kind],
                at=place.path if place else "",
                parameter=place.parameter if place else None,
            )


def beyond_api(body: PromptBody) -> Iterable[Deviation]:
    """Yields the parts of a format's schema that are accepted but not enforced."""
    newer = None if body.output_config is None else body.output_config.format
    for name, form in (("output_config.format", newer), ("output_format", body.output_format)):
        yield from fields.report_unheld(name, None if form is None else form.schema)


class ThreadUnsupported(HttpError):
    """Refuses a conversation that the server would have to store; the error's details make clients send the whole
    conversation.
    """

    details = MappingProxyType(
        {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }
    )

    def __init__(self) -> None:
        message = "thread must be absent: conversations are not stored; send all messages"
        super().__init__(400, message, parameter="thread")
