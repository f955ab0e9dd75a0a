"""Events that clients of OpenAI's realtime API send."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.web.realtime.transcription_settings import SoundFields

MaxTokens = int | Literal["inf"]


class SessionFields(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a session; fields that are absent keep their values. `audio` is that of both types of sessions."""

    type: str = "realtime"
    model: str | None = None
    output_modalities: list[str] | None = None
    instructions: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: MaxTokens | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Any = None
    audio: SoundFields | None = None
    prompt: dict[str, Any] | None = None
    tracing: Any = None
    include: list[str] | None = None


class ResponseFields(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one response, in place of those of its session. `input` replaces the conversation."""

    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    output_modalities: list[str] | None = None
    instructions: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: MaxTokens | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    audio: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a client. `event_id` is the client's, and errors repeat it."""

    type: str
    event_id: str | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True):
    """Changes settings of the session."""

    session: SessionFields


class ItemCreate(ClientEvent, frozen=True, kw_only=True):
    """Adds an item to the conversation: after `previous_item_id`, "root" for the beginning, or at the end."""

    item: dict[str, Any]
    previous_item_id: str | None = None


class SoundAppend(ClientEvent, frozen=True, kw_only=True):
    """Adds samples in base64 to the buffer."""

    audio: str


class ItemNamed(ClientEvent, frozen=True, kw_only=True):
    """Reads or deletes an item."""

    item_id: str


class ResponseCreate(ClientEvent, frozen=True, kw_only=True):
    """Starts a response."""

    response: ResponseFields = ResponseFields()


class ResponseCancel(ClientEvent, frozen=True, kw_only=True):
    """Ends the response that is being made."""

    response_id: str | None = None
