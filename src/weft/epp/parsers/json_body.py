"""JSON bodies: decoded strictly, only as far as is needed, and changed in one member only."""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec

from weft.epp.decision.request import Prompt
from weft.epp.parsers.parser import MAX_TOKEN_ID, malformed

T = TypeVar("T")

# What decoding may raise. Invalid UTF-8 and endless nesting have errors of their own.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = tuple[TokenId, ...]
# One prompt or several, as text or as token ids.
PromptField = str | tuple[str, ...] | TokenIds | tuple[TokenIds, ...]


# A member that was not sent. (`Raw | None` would refuse everything but null.)
ABSENT = msgspec.Raw()


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a member was sent, and is not null."""
    return bytes(memoryview(raw)[:5]) not in {b"", b"null"}


class Part(msgspec.Struct):
    """A piece of content. Whatever is not text counts by its bytes."""

    type: str = "text"
    text: str | None = None


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """The body as the decoder's type; `Refused` with a sentence if it is not that."""
    if not body:
        raise malformed("the request has no body; a JSON object is expected")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as err:
        raise malformed(f"the body is not what this path takes: {err}") from err
    except RecursionError as err:
        raise malformed("the body is nested too deeply") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise malformed(f"the body is not valid JSON: {err}") from err


def require_model(model: str | None) -> str:
    """The model's name; every dialect over HTTP that has one demands it."""
    if not model:
        raise malformed("model not found in request body")
    return model


def rename_model(body: bytes, model: str) -> bytes:
    """The body with another model. The other members keep their bytes and their order."""
    members = decode_body(_members, body)
    members["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)


def to_prompts(value: PromptField | msgspec.Raw, name: str) -> tuple[Prompt, ...]:
    """Each prompt of a field that may hold one or several, as text or as token ids."""
    if isinstance(value, msgspec.Raw):
        value = decode_prompts(value, name)
    if isinstance(value, str):
        return (Prompt(text=value),)
    if not value:
        raise malformed(f"{name} must not be empty")
    match value[0]:
        case str():
            return tuple(Prompt(text=text) for text in value)
        case tuple():
            return tuple(Prompt(token_ids=ids) for ids in value)
        case _:
            return (Prompt(token_ids=value),)


# A union of arrays is beyond the decoder, so the first characters choose.
_one_text = _text
_texts = msgspec.json.Decoder(tuple[str, ...])
_ids = msgspec.json.Decoder(TokenIds)
_many_ids = msgspec.json.Decoder(tuple[TokenIds, ...])
_SHAPE: Final = re.compile(rb'(?:\[\s*)?(["\[]?)')


def decode_prompts(raw: msgspec.Raw, name: str) -> PromptField:
    """A prompt field by its shape: text, texts, ids, or lists of ids."""
    view = memoryview(raw)
    found = _SHAPE.match(view)
    first = found[1] if found else b""
    decoder: Any = {b'"': _texts, b"[": _many_ids}.get(first, _ids)
    if bytes(view[:1]) == b'"':
        decoder = _one_text
    try:
        decoded: PromptField = decoder.decode(view)
    except UNREADABLE as err:
        raise malformed(f"{name} must be a text, token ids, or a list of either: {err}") from err
    return decoded


def joined_text(pieces: Iterable[str]) -> Prompt:
    """One prompt of everything that precedes the answer, in order."""
    return Prompt(text="".join(pieces))


def content_text(content: str | list[msgspec.Raw] | None) -> str:
    """The text of a message's content; what is not text stands as a hash of its bytes."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(raw) for raw in content)


_part = msgspec.json.Decoder(Part | str)


def _part_text(raw: msgspec.Raw) -> str:
    part = _part.decode(raw)
    if isinstance(part, str):
        return part
    return raw_text(raw) if part.text is None else part.text


def raw_text(raw: msgspec.Raw) -> str:
    """A stand-in for a value that is only compared: its text, or a hash of it where it is long."""
    view = memoryview(raw) if is_given(raw) else memoryview(b"")
    if len(view) > 1024:  # an image in base64 would otherwise be most of the prompt
        return hashlib.blake2b(view, digest_size=16).hexdigest()
    return bytes(view).decode("utf-8", "replace")
