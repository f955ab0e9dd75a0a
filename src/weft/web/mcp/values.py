"""What a call of a server's tool comes to, and what goes wrong with a server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.errors import WeftError

_MAX_ERROR_CHARS = 500


class ToolServerError(WeftError):
    """A server of tools does not do what it is to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call came to: an output, or an error as OpenAI's API writes it. `text` is what the model reads."""

    text: str
    error: Mapping[str, Any] | None = None


def failed(kind: str, code: int, message: str) -> CallResult:
    """A call that came to nothing."""
    return CallResult(
        text=f"Error: {message}", error={"type": kind, "code": code, "message": message}
    )


def reason(error: BaseException) -> str:
    """What went wrong in the first place, in few words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return (str(error) or type(error).__name__)[:_MAX_ERROR_CHARS]
