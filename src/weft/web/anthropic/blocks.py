"""Blocks of a message, each as the struct of its type; and those that are read as text, as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.schema.anthropic import (
    Block,
    DocumentBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from weft.text.content import PartTypes, Place, read_parts
from weft.web.anthropic.unsupported import REFUSED_BLOCKS, refuse_unsupported

_STRUCTS: Mapping[str, type[Block]] = {
    "text": TextBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
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


TEXT = _types("text")
READABLE = _types("text", "document", "search_result")
OF_USER = _types(*READABLE.structs, "tool_result")
OF_ASSISTANT = _types("text", "thinking", "redacted_thinking", "tool_use")


def read_blocks(
    content: str | Sequence[Mapping[str, Any]], types: PartTypes[Block], place: Place
) -> Iterator[tuple[Place, Block]]:
    """The blocks of `content`, each with its place, and with no field that requests what is not offered."""
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
    """What the model reads of each block of `content`, where `types` are among `READABLE`."""
    return [to_text(block, at) for at, block in read_blocks(content, types, place)]


def to_text(block: Block, place: Place) -> str:
    """What the model reads of a block of one of the types `READABLE`."""
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock(title=title, context=context):
            return _tagged("document", _document(block, place), title=title, context=context)
        case SearchResultBlock(title=title, source=source, content=content):
            text = "\n".join(to_texts(content, TEXT, place.field("content")))
            return _tagged("search_result", text, title=title, source=source)
        case _:
            raise AssertionError(f"a {type(block).__name__} is not read as text")


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
    """Text whose beginning and end a model can tell from what is around it."""
    lines = [f"<{name}>{fact}</{name}>" for name, fact in facts.items() if fact]
    return "\n".join([f"<{tag}>", *lines, "<content>", text, "</content>", f"</{tag}>"])
