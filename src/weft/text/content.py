"""Content parts of messages: each API has a table of the part types that it accepts, and `read_parts` reads lists of
parts by this table.

A new kind of part needs a struct here, a case in `to_wire`, and a row in the table of each API that accepts the part;
an API without this row refuses the part. `weft.text.chat_media` reads media parts, for engines that accept media.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import Modality

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """Text of any role."""

    text: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Refusal of an assistant in an earlier turn; templates see it as text."""

    refusal: str


class Placeholder(msgspec.Struct, frozen=True):
    """Position of a media item in a message whose media have been extracted; no request body can spell it."""

    modality: Modality


Part: TypeAlias = Text | Refusal


class Place(msgspec.Struct, frozen=True, gc=False):
    """A place in a body: the field that an error names, and the path at the beginning of its message."""

    parameter: str
    path: str

    def __getitem__(self, position: int) -> "Place":
        return Place(self.parameter, f"{self.path}[{position}]")

    def field(self, name: str) -> "Place":
        """A field inside this place."""
        return Place(self.parameter, f"{self.path}.{name}")

    def error(self, message: str) -> BadRequest:
        """Returns an error for this place; the message follows the path."""
        return BadRequest(self.parameter, f"{self.path}{message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTypes(Generic[_Struct]):
    """Allowed parts of one kind of list: the struct of each type, and the wording of errors.

    `refused` maps each known but unsupported type to the reason of the refusal. The error messages may contain the
    placeholders `{list}` and `{part}` (paths), `{type}`, `{types}` and `{reason}`. For a part that does not match its
    struct they may also contain `{field}` (the first invalid field), `{error}`, or `{placed_error}` (the error with the
    part's path).
    """

    structs: Mapping[str, type[_Struct]]
    refused: Mapping[str, str] = field(default_factory=dict)
    if_refused: str = ""
    if_unknown: str
    if_untyped: str | None = None
    if_malformed: str


# Parts of OpenAI's chat messages, which are also the internal form of messages.
CHAT_PARTS: PartTypes[Part] = PartTypes(
    structs={"text": Text, "refusal": Refusal},
    refused={"prompt_embeds": "embeddings"},
    if_refused="{list}: parts of type {type} are taken by /v1/chat/completions alone",
    if_unknown="{list} may hold parts of type text, got {type!r}",
    if_malformed="{list}: the text of a part must be a string",
)


def read_parts(
    content: str | Sequence[object], types: PartTypes[_Struct], place: Place
) -> Iterator[tuple[Place, _Struct]]:
    """Returns the parts of `content`, which is at `place`, each part with its own place; a string becomes one text
    part.

    Raises `BadRequest` for a part whose type is not in `types`, or that does not match the struct of its type.
    """
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for position, part in enumerate(parts):
        at = place[position]
        yield at, read_part(part, types, at)


def read_part(part: object, types: PartTypes[_Struct], place: Place) -> _Struct:
    """Reads the part at `place`."""
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    struct = types.structs.get(kind) if isinstance(kind, str) else None
    if struct is None:
        raise _refusal(kind, types, place)
    try:
        return msgspec.convert(part, struct)
    except msgspec.ValidationError as error:
        placed = str(error).replace("`$", f"`{place.path}")
        if place.path not in placed:
            placed = f"{place.path}: {placed}"
        first = struct.__struct_fields__[0]
        message = types.if_malformed.format(
            field=first, error=error, placed_error=placed, **_paths(place)
        )
        raise BadRequest(place.parameter, message) from None


def to_wire(part: Part) -> dict[str, Any]:
    """The part in the form of OpenAI's messages."""
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Refusal(refusal=refusal):
            return {"type": "refusal", "refusal": refusal}


def spelled_out(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with plain text as parts of type text, and an assistant's thinking as its reasoning."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    parts = [_as_part(part) for part in content]
    if message.get("role") != "assistant":
        return {**message, "content": parts}
    reasoning = [part["thinking"] for part in parts if _is_thinking(part)]
    rest = {**message, "content": [part for part in parts if not _is_thinking(part)]}
    if not reasoning:
        return rest
    return {"reasoning": "\n".join(reasoning), **rest}


def joined_text(content: object) -> str:
    """The text of a message's content, whether a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _refusal(kind: object, types: PartTypes[_Struct], place: Place) -> BadRequest:
    message = types.if_unknown
    if not isinstance(kind, str):
        message = types.if_untyped or message
    elif kind in types.refused:
        message = types.if_refused
    shown = message.format(
        type=str(kind)[:40],
        types=", ".join(types.structs),
        reason=types.refused.get(str(kind)),
        **_paths(place),
    )
    return BadRequest(place.parameter, shown)


def _paths(place: Place) -> dict[str, str]:
    return {"part": place.path, "list": place.path.rpartition("[")[0]}


def _as_part(part: object) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and "type" not in part and isinstance(part.get("text"), str):
        return {"type": "text", **part}
    return part


def _is_thinking(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "thinking"
        and isinstance(part.get("thinking"), str)
    )
