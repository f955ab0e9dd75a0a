"""Settings of a realtime session, and what a response makes of them."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from weft.core.errors import BadRequest
from weft.web.realtime.client_events import MaxTokens, ResponseFields, SessionFields

# Fields that this server does not have; null is always accepted.
_REFUSED: Final = {
    "prompt": "prompts are not stored here; use instructions",
    "include": "transcripts have no log-probabilities",
    "tracing": "sessions are traced by the server's own collector",
}
_TRUNCATIONS: Final = ("auto", "disabled")
_NOT_OF_TRANSCRIPTION: Final = (
    *("output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens"),
    *("parallel_tool_calls", "reasoning", "truncation"),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session or a response, with the names of the API."""

    output_modalities: tuple[str, ...] = ("text",)
    instructions: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    max_output_tokens: MaxTokens = "inf"
    parallel_tool_calls: bool = True
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None  # of a prompt with media disabled, of any other auto

    def changed(self, fields: SessionFields | ResponseFields, place: str) -> "Settings":
        """The settings with `fields`; errors name fields of `place`."""
        _check(fields, place)
        given = {
            name: value
            for name in self.__struct_fields__
            if (value := _value(fields, name)) is not UNSET
        }
        return msgspec.structs.replace(self, **given)

    def shown(self) -> dict[str, Any]:
        """The settings as a session shows them."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return {**made, "truncation": self.truncation or "auto"}

    def to_body(
        self,
        items: list[dict[str, Any]],
        metadata: dict[str, str] | None,
        *,
        has_media: bool = False,
    ) -> bytes:
        """A body of /v1/responses with these settings."""
        functions = [_function(tool, position) for position, tool in enumerate(self.tools)]
        limit = self.max_output_tokens
        return msgspec.json.encode(
            {
                "input": items,
                "instructions": self.instructions,
                "tools": functions,
                "tool_choice": self.tool_choice if functions else None,
                "max_output_tokens": None if limit == "inf" else limit,
                "parallel_tool_calls": self.parallel_tool_calls,
                "reasoning": self.reasoning,
                "truncation": self.truncation or ("disabled" if has_media else "auto"),
                "metadata": metadata,
                "store": False,
                "stream": True,
            }
        )


def check_transcription(fields: SessionFields) -> None:
    """Raises `BadRequest` for settings that a session of type transcription does not have."""
    _check(fields, "session")
    for name in _NOT_OF_TRANSCRIPTION:
        if getattr(fields, name) not in (None, UNSET):
            raise BadRequest(
                f"session.{name}",
                f"session.{name} must be absent: a session of type transcription has audio alone",
            )


def _value(fields: SessionFields | ResponseFields, name: str) -> Any:
    """The value of a field; UNSET if it is absent. Only instructions may be null, for none."""
    value: Any = getattr(fields, name, UNSET)
    if value is None and name != "instructions":
        return UNSET
    return tuple(value) if name == "output_modalities" else value


def _check(fields: SessionFields | ResponseFields, place: str) -> None:
    if isinstance(fields, ResponseFields) and fields.audio is not None:
        raise BadRequest(
            f"{place}.audio", f"{place}.audio must be absent: this server does not speak"
        )
    for name, reason in _REFUSED.items():
        value = getattr(fields, name, None)
        if value is not None and value not in ([], "auto"):
            raise BadRequest(f"{place}.{name}", f"{place}.{name} must be absent: {reason}")
    if fields.output_modalities not in (None, ["text"]):
        raise BadRequest(
            f"{place}.output_modalities",
            f'{place}.output_modalities must be ["text"]: this server does not speak',
        )
    limit = fields.max_output_tokens
    if isinstance(limit, int) and limit < 1:
        raise BadRequest(
            f"{place}.max_output_tokens",
            f'{place}.max_output_tokens must be at least 1, or "inf", got {limit}',
        )
    truncation = getattr(fields, "truncation", None)
    if truncation is not None and truncation not in _TRUNCATIONS:
        raise BadRequest(
            f"{place}.truncation", f"{place}.truncation must be {' or '.join(_TRUNCATIONS)}"
        )


def _function(tool: dict[str, Any], position: int) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise BadRequest(
            f"session.tools[{position}]",
            f"session.tools[{position}] must be of type function: other tools do not run in a session",
        )
    return tool
