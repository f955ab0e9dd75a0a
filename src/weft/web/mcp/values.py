"""Limits of MCP servers and of responses that call their tools, results of calls, and errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.errors import WeftError

_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits: `max_turns` and `max_calls` per response, `max_received_bytes` and `max_session_s` per session."""

    max_turns: int = 32
    max_calls: int = 128
    max_servers: int = 8
    max_listed_tools: int = 128
    max_result_chars: int = 256 * 1024
    max_received_bytes: int = 16 * 1024 * 1024
    max_sessions: int = 256
    connect_timeout_s: float = 15.0
    call_timeout_s: float = 120.0
    max_session_s: float = 900.0


class ToolServerError(WeftError):
    """A tool server failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Result of a tool call: an output, or an error as OpenAI's API writes it. `text` is the text that the model
    reads.
    """

    text: str
    error: Mapping[str, Any] | None = None


def failed(kind: str, code: int, message: str) -> CallResult:
    """The result of a failed call."""
    return CallResult(
        text=f"Error: {message}", error={"type": kind, "code": code, "message": message}
    )


def reason(error: BaseException) -> str:
    """Returns the root cause of an error in a few words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return (str(error) or type(error).__name__)[:_MAX_ERROR_CHARS]
