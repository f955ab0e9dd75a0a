"""Blocks of a message, as structs by type, and their conversion to text and to parts of OpenAI's messages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.schema.anthropic import (
    Block,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from weft.text.content import PartTypes, Place, read_parts
from weft.web.anthropic.unsupported import REFUSED_BLOCKS, refuse_unsupported

_STRUCTS: Mapping[str, type[Block]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
    "tool_reference": ToolReferenceBlock,
}


def _types(*names: str) -> PartTypes[Block]:
    return PartTypes(
        structs={name: _STRUCTS[name] for name in names},
        refused=REFUSED_BLOCKS,
        if_refused="{part}: blocks of type {type} are not taken: {reason}",
        if_unknown="{part}.type must be one of {types} here, got {type!a}",
        if_untyped="{part}.type is missing, or no string",
        if_malformed="{part}: {error}",
    )


_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
TEXT = _types("text")
READABLE = _types("text", "document", "search_result")
OF_USER = _types(*READABLE.structs, "tool_result")
# Blocks that a model with image inputs can read.
SEEN = _types(*READABLE.structs, "image")
OF_USER_SEEN = _types(*OF_USER.structs, "image")
IN_RESULT = _types(*READABLE.structs, "tool_reference")
IN_RESULT_SEEN = _types(*IN_RESULT.structs, "image")
OF_ASSISTANT = _types("text", "thinking", "redacted_thinking", "tool_use")


def read_blocks(
    content: str | Sequence[Mapping[str, Any]], types: PartTypes[Block], place: Place
) -> Iterator[tuple[Place, Block]]:
    """The blocks of `content`, each with its place; raises `BadRequest` for fields of unsupported features."""
    for at, block in read_parts(content, types, place):
        refuse_unsupported(block, at)
        if isinstance(block, DocumentBlock | SearchResultBlock) and block.citations is not None:
            refuse_unsupported(block.citations, at.field("citations"))
        if isinstance(block, ToolUseBlock) and block.caller and block.caller.type != "direct":
            raise at.error(".caller must be absent or of type direct")
        yield at, block


def to_texts(
    content: str | Sequence[Mapping[str, Any]], types: PartTypes[Block], place: Place
) -> list[str]:
    """Returns the text that the model reads for each block of `content`; `types` are among `READABLE`."""
    return [to_text(block, at) for at, block in read_blocks(content, types, place)]


def to_text(block: Block, place: Place) -> str:
    """Returns the text that the model reads for a block of one of the types `IN_RESULT`."""
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock(title=title, context=context):
            return _tagged("document", _document(block, place), title=title, context=context)
        case SearchResultBlock(title=title, source=source, content=content):
            text = "\n".join(to_texts(content, TEXT, place.field("content")))
            return _tagged("search_result", text, title=title, source=source)
        case ToolReferenceBlock(tool_name=name):
            return f"Tool found: {name}"
        case _:
            raise AssertionError(f"a {type(block).__name__} is not read as text")


def to_part(block: Block, place: Place) -> dict[str, Any]:
    """Converts a block of one of the types `IN_RESULT_SEEN` to a part of OpenAI's messages."""
    if isinstance(block, ImageBlock):
        url = _image_url(block.source, place.field("source"))
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": to_text(block, place)}


def _image_url(source: ImageSource, place: Place) -> str:
    match source:
        case ImageSource(type="base64", data=str(data), media_type=str(kind), url=None):
            if kind not in _IMAGE_TYPES:
                raise place.error(f".media_type must be one of {', '.join(_IMAGE_TYPES)}")
            return f"data:{kind};base64,{data}"
        case ImageSource(type="url", url=str(url), data=None):
            return url
        case ImageSource(type="base64"):
            raise place.error(
                " of type base64 must have media_type and data, and must not have url"
            )
        case ImageSource(type="url"):
            raise place.error(" of type url must have url, and must not have data")
    raise place.error(f".type must be base64 or url, got {source.type[:40]!a}: no files are stored")


def _document(block: DocumentBlock, place: Place) -> str:
    source = block.source
    match source.type:
        case "text" if source.data is not None:
            if source.media_type not in {None, "text/plain"}:
                raise place.error(".source.media_type must be text/plain")
            return source.data
        case "content" if source.content is not None:
            return "\n".join(to_texts(source.content, TEXT, place.field("source.content")))
        case "text" | "content":
            missing = "data" if source.type == "text" else "content"
            raise place.error(f".source.{missing} is missing")
    raise place.error(
        f".source.type must be text or content, got {source.type[:40]!a}: "
        "this server reads text only, and fetches nothing"
    )


def _tagged(tag: str, text: str, **facts: str | None) -> str:
    """Puts text between tags, so that the model recognizes its beginning and end."""
    lines = [f"<{name}>{fact}</{name}>" for name, fact in facts.items() if fact]
    return "\n".join([f"<{tag}>", *lines, "<content>", text, "</content>", f"</{tag}>"])
