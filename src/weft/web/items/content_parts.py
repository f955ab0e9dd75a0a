"""Parts of the contents of items: texts, and media for models that take them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from weft.text.chat_media import Sound
from weft.text.content import Part, PartTypes, Refusal, Text, to_wire

Item = dict[str, Any]


class InputImage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture to be looked at, at an address that may be a `data:` URL."""

    image_url: str
    detail: str | None = None


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """A sound to be heard, in base64."""

    input_audio: Sound


ContentPart: TypeAlias = Part | InputImage | InputAudio

_TEXTS: Mapping[str, type[Part]] = {
    "input_text": Text, "output_text": Text, "text": Text, "refusal": Refusal,
}  # fmt: skip
TEXT_PARTS: PartTypes[Part] = PartTypes(
    structs=_TEXTS,
    if_unknown="{part}: parts of type {type!a} are not taken; this server takes text only "
    "(input_text, output_text, refusal)",
    if_malformed="{part}.{field} must be a string",
)
MEDIA_PARTS: PartTypes[ContentPart] = PartTypes(
    structs={**_TEXTS, "input_image": InputImage, "input_audio": InputAudio},
    if_unknown="{part}: parts of type {type!a} are not taken; there are {types}",
    if_malformed="{placed_error}",
)


def to_content(given: str | Sequence[Item], parts: Iterable[ContentPart]) -> str | list[Item]:
    """A message's content, in chat's form."""
    return given if isinstance(given, str) else list(map(_to_chat, parts))


def listed_part(part: ContentPart, kind: str) -> Item:
    """A part in the form in which it is listed; `kind` is the type of a text."""
    match part:
        case InputImage():
            return {"type": "input_image", "image_url": part.image_url, "detail": part.detail}
        case Text():
            annotations: Item = {"annotations": []} if kind == "output_text" else {}
            return {"type": kind, "text": part.text, **annotations}
        case _:
            return _to_chat(part)


def listed_of_chat(part: Mapping[str, Any]) -> Item:
    """A part of a user's message in chat's form, in the form in which it is listed."""
    match part["type"]:
        case "image_url":
            address = part["image_url"]
            return {"type": "input_image", "image_url": address["url"], "detail": address["detail"]}
        case "input_audio":
            return dict(part)
    return {"type": "input_text", "text": part.get("text", part.get("refusal", ""))}


def _to_chat(part: ContentPart) -> Item:
    match part:
        case InputImage():
            address = {"url": part.image_url, "detail": part.detail}
            return {"type": "image_url", "image_url": address}
        case InputAudio():
            return {"type": "input_audio", "input_audio": msgspec.structs.asdict(part.input_audio)}
        case _:
            return to_wire(part)
