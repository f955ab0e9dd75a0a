"""JSON bodies: decoded strictly, only as far as is needed, and changed in one member only."""

import hashlib
import re
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import msgspec

from weft.epp.request.parsers.parser import MAX_TOKEN_ID, malformed
from weft.epp.request.values import Prompt

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


def rename_model(body: bytes, model: str) -> bytes:
    """The body with another model. The other members keep their bytes and their order."""
    members = decode_body(_members, body)
    members["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)


def to_prompts(raw: msgspec.Raw, name: str) -> tuple[Prompt, ...]:
    """Each prompt of a field that may hold one or several, as text or as token ids.

    Of a long list only the beginning is decoded, and the rest counted by its commas.
    """
    view = memoryview(raw)
    kind, decoder = _shape(view)
    end = _cut(view, kind)
    try:
        if end is None:
            value: PromptField = decoder.decode(view)
        else:
            head = bytes(view[:end]).rstrip()
            is_inside = kind == b"[" and not head.endswith(b"]")
            value = decoder.decode(head + (b"]]" if is_inside else b"]"))
    except UNREADABLE as err:
        raise malformed(f"{name} must be a text, token ids, or a list of either: {err}") from err
    prompts = _to_prompts(value, name)
    if end is None:
        return prompts
    left_out = bytes(view[end:]).count(b",")
    return (*prompts[:-1], replace(prompts[-1], num_left_out=left_out))


def _to_prompts(value: PromptField, name: str) -> tuple[Prompt, ...]:
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
_texts = msgspec.json.Decoder(tuple[str, ...])
_ids = msgspec.json.Decoder(TokenIds)
_many_ids = msgspec.json.Decoder(tuple[TokenIds, ...])
_SHAPE: Final = re.compile(rb'(?:\[\s*)?(["\[]?)')
# So much of a list is decoded: more than is compared of ids that are written densely.
_MAX_LIST_BYTES: Final = 8 * 2**20
_MAX_PROMPTS: Final = 1024
_ITEM: Final = {
    b"[": re.compile(rb"\](?=\s*,)"),
    b'"': re.compile(rb'"(?:[^"\\]|\\.)*+"\s*(?=,)', re.DOTALL),
}


def _shape(view: memoryview) -> tuple[bytes, "msgspec.json.Decoder[Any]"]:
    """What a prompt field holds: text, texts, ids, or lists of ids; and what decodes that."""
    if bytes(view[:1]) == b'"':
        return b"text", _text
    found = _SHAPE.match(view)
    first: bytes = found[1] if found else b""
    decoders: dict[bytes, msgspec.json.Decoder[Any]] = {b'"': _texts, b"[": _many_ids}
    return first, decoders.get(first, _ids)


def _cut(view: memoryview, kind: bytes) -> int | None:
    """Where a list that is too long is cut: before a comma."""
    end = None
    if len(view) > _MAX_LIST_BYTES and kind in {b"", b"["}:
        end = bytes(view[:_MAX_LIST_BYTES]).rfind(b",")
        end = end if end > 0 else None
    if (item := _ITEM.get(kind)) is not None:
        ends = (found.end() for found in item.finditer(view, 1, end or len(view)))
        end = next(islice(ends, _MAX_PROMPTS - 1, None), end)
    return end


class Content:
    """Gathers what a conversation holds, in order: its text, and how many media stand in it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._num_parts = 0
        self.num_media = 0

    @property
    def is_full(self) -> bool:
        """More than this is not compared: nobody writes a conversation of so many parts."""
        return self._num_parts > _MAX_PARTS

    def add(self, content: str | list[msgspec.Raw] | None) -> None:
        """A message's content; what is not text stands as a hash of its bytes."""
        self._num_parts += 1
        if isinstance(content, str):
            self._pieces.append(content)
            return
        for raw in content or ():
            self._num_parts += 1
            if self.is_full:
                return
            part = _part.decode(raw)
            if isinstance(part, str):
                self._pieces.append(part)
                continue
            self.num_media += part.type in _MEDIA
            self._pieces.append(raw_text(raw) if part.text is None else part.text)

    def prompt(self) -> Prompt:
        """One prompt of everything that was added."""
        return Prompt(text="".join(self._pieces))


_part = msgspec.json.Decoder(Part | str)
_MAX_PARTS: Final = 2**17
# Types of parts that an encoder turns into embeddings, as OpenAI, Anthropic and vLLM name them.
_MEDIA: Final = frozenset({
    "image", "image_url", "image_embeds", "image_pil", "input_image", "video", "video_url",
    "input_video", "audio", "audio_url", "audio_embeds", "input_audio",
})  # fmt: skip


def short_text(text: str) -> str:
    """A stand-in for a text that is only compared: itself, or a hash of it where it is long."""
    if len(text) <= 1024:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def raw_text(raw: msgspec.Raw) -> str:
    """A stand-in for a value that is only compared: its text, or a hash of it where it is long."""
    view = memoryview(raw) if is_given(raw) else memoryview(b"")
    if len(view) > 1024:  # an image in base64 would otherwise be most of the prompt
        return hashlib.blake2b(view, digest_size=16).hexdigest()
    return bytes(view).decode("utf-8", "replace")
