"""JSON request bodies: decodes the members that routing needs, strictly, and replaces the model name."""

import hashlib
import re
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import msgspec

from weft.core.checks.json_pieces import SLICE_BYTES, JsonPieces
from weft.epp.request.parsers.loose_json import ABSENT, mend, to_text
from weft.epp.request.parsers.parser import MAX_TOKEN_ID, Call, Parser, malformed
from weft.epp.request.values import MAX_COMPARED_TOKENS, Prompt, Refused

T = TypeVar("T")

# Exceptions of the decoder; invalid UTF-8 and too deep nesting raise their own.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = tuple[TokenId, ...]
# One prompt or several, as text or as token ids.
PromptField = str | tuple[str, ...] | TokenIds | tuple[TokenIds, ...]


def is_given(raw: msgspec.Raw) -> bool:
    """True if the member is present and not null."""
    return raw is not ABSENT and bytes(memoryview(raw)[:5]) not in {b"", b"null"}


class Part(msgspec.Struct):
    """A part of a message's content. Parts that are not text count by their bytes."""

    type: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT


# Maximum number of values, keys, objects and arrays: decoded, they take many times their bytes, and no real
# conversation has as many. Longer lists of token ids are cut instead of refused.
MAX_PARTS: Final = 2**18
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decodes the body. Raises `Refused` with a message if it does not have the type."""
    if not body:
        raise malformed("the request has no body; a JSON object is expected")
    return _decode(decoder, body, "the body")


def decode_member(decoder: "msgspec.json.Decoder[T]", raw: msgspec.Raw, name: str) -> T | None:
    """Decodes a member that may have very many parts; the parts are counted first. Returns None if the member is
    absent.
    """
    if not is_given(raw):
        return None
    _check_parts(memoryview(raw), b",:[{", name)
    return _decode(decoder, raw, name)


def rename_model(body: bytes, model: str) -> bytes:
    """Returns the body with another model name. The other members keep their bytes and order."""
    _check_parts(memoryview(body), b":", "the body")
    members = decode_body(_members, body)
    members["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)


def _decode(decoder: "msgspec.json.Decoder[T]", text: bytes | msgspec.Raw, name: str) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as err:
        raise malformed(f"{name} is not valid for this path: {err}") from err
    except RecursionError as err:
        raise malformed(f"{name} is nested too deeply") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        mended = mend(memoryview(text))
        if mended is None or mended == bytes(memoryview(text)):
            raise malformed(f"{name} is not valid JSON: {err}") from err
        return _decode(decoder, mended, name)


def _check_parts(view: memoryview, marks: bytes, name: str) -> None:
    if len(view) <= MAX_PARTS:  # every part has at least one byte
        return
    pieces, num_parts = JsonPieces(), 0
    for start in range(0, len(view), SLICE_BYTES):
        _, bare = pieces.feed(bytes(view[start : start + SLICE_BYTES]))
        num_parts += sum(map(bare.count, marks))
        if num_parts > MAX_PARTS:
            raise Refused(
                413, f"{name} has more than {MAX_PARTS} parts, which are too many to read"
            )


class JsonParser(Parser):
    """Base class of parsers of JSON bodies whose top-level object contains the model's name."""

    def rename(self, call: Call, model: str) -> bytes:
        """Returns the body with another model name."""
        return rename_model(call.body, model)


def to_prompts(raw: msgspec.Raw, name: str) -> tuple[Prompt, ...]:
    """Returns the prompts of a field that contains one or several, as text or token ids.

    Only the beginning of a long prompt is decoded; the length of the rest is estimated by its commas or bytes.
    """
    view = memoryview(raw)
    try:
        return _head_of_prompts(view, name)
    except UNREADABLE as err:
        raise malformed(f"{name} must be a text, token ids, or a list of either: {err}") from err


def _head_of_prompts(view: memoryview, name: str) -> tuple[Prompt, ...]:
    start, kind, decoder = _shape(view)
    end = _cut(view, kind)
    # A text, or a list whose first text is long.
    if decoder is _text or (kind == b'"' and end == 0):
        text, num_left_out = read_text(view[start:])
        return (Prompt(text=text, num_left_out=num_left_out),)
    if end is None:
        return _to_prompts(decoder.decode(view), name)
    head = bytes(view[:end]).rstrip()
    is_inside = kind == b"[" and not head.endswith(b"]")
    prompts = _to_prompts(decoder.decode(head + (b"]]" if is_inside else b"]")), name)
    left_out = (len(view) - end) // 4 if kind == b'"' else bytes(view[end:]).count(b",")
    return (*prompts[:-1], replace(prompts[-1], num_left_out=left_out))


def read_text(view: memoryview) -> tuple[str, int]:
    """Decodes the beginning of a JSON string, up to the compared length; returns it and the estimated number of
    remaining tokens.
    """
    if len(view) <= _MAX_TEXT_BYTES:
        try:
            return _text.decode(view), 0
        except UNREADABLE:
            mended = mend(view)
            if mended is None:
                raise
            return _text.decode(mended), 0
    end = _MAX_TEXT_BYTES
    while True:
        try:
            return _text.decode(bytes(view[:end]) + b'"'), (len(view) - end) // 4
        except UNREADABLE:  # the cut fell inside a character or an escape
            end -= 1
            if end < _MAX_TEXT_BYTES - _MAX_ESCAPE_BYTES:
                raise


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


# The decoder cannot read a union of arrays, so the first characters of the list decide its type.
_texts = msgspec.json.Decoder(tuple[str, ...])
_ids = msgspec.json.Decoder(TokenIds, strict=False)
_many_ids = msgspec.json.Decoder(tuple[TokenIds, ...], strict=False)
_SHAPE: Final = re.compile(rb'(?:\[\s*)?(["\[]?)')
# Maximum bytes of a list that are decoded: enough for all ids that are compared, if written without spaces.
_MAX_LIST_BYTES: Final = 8 * 2**20
_MAX_TEXT_BYTES: Final = 8 * 2**20  # a character may take four bytes
_MAX_ESCAPE_BYTES: Final = 12
_MAX_PROMPTS: Final = 1024
_LAST_OF_IDS: Final = re.compile(rb"\](?=\s*,)")
_TEXT: Final = re.compile(rb'\s*+"(?:[^"\\]++|\\.)*+"\s*+(?=,)', re.DOTALL)


def _shape(view: memoryview) -> tuple[int, bytes, "msgspec.json.Decoder[Any]"]:
    """Returns the kind of a prompt field (text, texts, token ids, lists of token ids), its bytes, and the decoder of
    the kind.
    """
    if bytes(view[:1]) == b'"':
        return 0, b"", _text
    found = _SHAPE.match(view)
    assert found is not None
    first: bytes = found[1]
    decoders: dict[bytes, msgspec.json.Decoder[Any]] = {b'"': _texts, b"[": _many_ids}
    return found.start(1), first, decoders.get(first, _ids)


def _cut(view: memoryview, kind: bytes) -> int | None:
    """Returns the position of the comma at which to cut a list that is too long. 0 means that the list's first text is
    itself too long.
    """
    if kind == b'"':
        return _cut_texts(view)
    end = None
    if len(view) > _MAX_LIST_BYTES:
        end = bytes(view[:_MAX_LIST_BYTES]).rfind(b",")
        end = end if end > 0 else None
    if kind == b"[":
        ends = (found.end() for found in _LAST_OF_IDS.finditer(view, 1, end or len(view)))
        end = next(islice(ends, _MAX_PROMPTS - 1, None), end)
    return end


def _cut_texts(view: memoryview) -> int | None:
    end = 0
    for _ in range(_MAX_PROMPTS):
        found = _TEXT.match(view, end + 1, _MAX_TEXT_BYTES)
        if found is None:
            return end if len(view) > _MAX_TEXT_BYTES else None
        end = found.end()
    return end


class Content:
    """Collects the text of a conversation in order, up to the compared length, and the hashes of its media."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = 4 * MAX_COMPARED_TOKENS
        self._num_left_out = 0  # in tokens
        self.media: list[str] = []  # hashes of the media

    def add(self, content: msgspec.Raw) -> None:
        """Adds the content of a message. Parts that are not text are represented by hashes."""
        if content is ABSENT:
            return
        if bytes(memoryview(content)[:1]) != b"[":
            self._add_value(content)
            return
        for raw in decode_member(_parts, content, "content") or ():
            self._add_part(raw)

    def add_text(self, text: str, num_left_out: int = 0) -> None:
        """Adds as much of the text as the compared length has room for; the rest is only counted."""
        if not text and not num_left_out:
            return
        num_chars = min(len(text), self._room)
        self._pieces.append(text[:num_chars])
        self._room -= num_chars
        self._num_left_out += (len(text) - num_chars) // 4 + num_left_out

    def prompt(self) -> Prompt:
        """Returns all added content as one prompt."""
        return Prompt(text="".join(self._pieces), num_left_out=self._num_left_out)

    def _add_value(self, value: msgspec.Raw) -> None:
        """Adds a text unchanged, and any other value as its JSON."""
        if bytes(memoryview(value)[:1]) == b'"':
            self.add_text(*read_text(memoryview(value)))
        else:
            self.add_text(raw_text(value))

    def _add_part(self, raw: msgspec.Raw) -> None:
        if bytes(memoryview(raw)[:1]) != b"{":
            self._add_value(raw)
            return
        part = _part.decode(raw)
        if to_text(part.type) in _MEDIA:
            self.media.append(digest(raw))
        self._add_value(part.text if is_given(part.text) else raw)


_part = msgspec.json.Decoder(Part)
_parts = msgspec.json.Decoder(list[msgspec.Raw])
# Types of parts that an encoder turns into embeddings, as OpenAI, Anthropic and vLLM name them.
_MEDIA: Final = frozenset({
    "image", "image_url", "image_embeds", "image_pil", "input_image", "video", "video_url",
    "input_video", "audio", "audio_url", "audio_embeds", "input_audio",
})  # fmt: skip


def digest(value: bytes | memoryview | msgspec.Raw) -> str:
    """Returns a short hash that stands for a long value."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()


def short_text(text: str) -> str:
    """Returns a text that is only compared: the text itself if it is short, otherwise its hash."""
    if len(text) <= 1024:
        return text
    return digest(text.encode("utf-8", "surrogatepass"))


def raw_text(raw: msgspec.Raw) -> str:
    """Returns a value that is only compared: its JSON if it is short, otherwise a hash."""
    if not is_given(raw):
        return ""
    view = memoryview(raw)
    if len(view) > 1024:  # most of the prompt would otherwise be an image in base64
        return digest(view)
    return bytes(view).decode("utf-8", "replace")
