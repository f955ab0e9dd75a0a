"""Blocks of a message, each as the struct of its kind; and those that are read as text, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.core.errors import BadRequest
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
TEXT = ("text",)
READABLE = ("text", "document", "search_result")
OF_USER = (*READABLE, "tool_result")
OF_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")


def read_blocks(
    content: str | Sequence[Mapping[str, Any]], kinds: Sequence[str], parameter: str, at: str
) -> list[Block]:
    """The blocks of `content`, which is at `at` in the body's field `parameter` and may hold `kinds`."""
    if isinstance(content, str):
        return [TextBlock(text=content)]
    return [
        _read_block(block, kinds, parameter, f"{at}[{position}]")
        for position, block in enumerate(content)
    ]


def to_text(block: Block, parameter: str, at: str) -> str:
    """What the model reads of a block of one of the kinds `READABLE`."""
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock():
            return _document(block, parameter, at)
        case SearchResultBlock(title=title, source=source, content=content):
            text = _joined(content, parameter, f"{at}.content")
            return _tagged("search_result", [("title", title), ("source", source)], text)
        case _:
            raise AssertionError(f"a {type(block).__name__} is not read as text")


def _read_block(block: Mapping[str, Any], kinds: Sequence[str], parameter: str, at: str) -> Block:
    kind = block.get("type")
    if not isinstance(kind, str):
        raise BadRequest(parameter, f"{at}.type is missing, or no string")
    if kind in REFUSED_BLOCKS:
        raise BadRequest(
            parameter, f"{at}: blocks of type {kind} are not taken: {REFUSED_BLOCKS[kind]}"
        )
    if kind not in kinds:
        raise BadRequest(
            parameter, f"{at}.type must be one of {', '.join(kinds)} here, got {kind[:40]!a}"
        )
    read = _converted(block, _STRUCTS[kind], parameter, at)
    refuse_unsupported(read, parameter, at)
    if isinstance(read, DocumentBlock | SearchResultBlock) and read.citations is not None:
        refuse_unsupported(read.citations, parameter, f"{at}.citations")
    if isinstance(read, ToolUseBlock) and read.caller and read.caller.type != "direct":
        raise BadRequest(parameter, f"{at}.caller must be absent or of type direct")
    return read


def _converted(block: Mapping[str, Any], struct: type[Block], parameter: str, at: str) -> Block:
    try:
        return msgspec.convert(block, struct)
    except msgspec.ValidationError as error:
        raise BadRequest(parameter, f"{at}: {error}") from None


def _document(block: DocumentBlock, parameter: str, at: str) -> str:
    source = block.source
    match source.type:
        case "text" if source.data is not None:
            if source.media_type not in {None, "text/plain"}:
                raise BadRequest(parameter, f"{at}.source.media_type must be text/plain")
            text = source.data
        case "content" if source.content is not None:
            text = _joined(source.content, parameter, f"{at}.source.content")
        case "text" | "content":
            missing = "data" if source.type == "text" else "content"
            raise BadRequest(parameter, f"{at}.source.{missing} is missing")
        case _:
            raise BadRequest(
                parameter,
                f"{at}.source.type must be text or content, got {source.type[:40]!a}: "
                "this server reads text only, and fetches nothing",
            )
    return _tagged("document", [("title", block.title), ("context", block.context)], text)


def _joined(content: str | Sequence[Mapping[str, Any]], parameter: str, at: str) -> str:
    blocks = read_blocks(content, TEXT, parameter, at)
    return "\n".join(to_text(block, parameter, at) for block in blocks)


def _tagged(tag: str, facts: Sequence[tuple[str, str | None]], text: str) -> str:
    """Text whose beginning and end a model can tell from what is around it."""
    lines = [f"<{name}>{fact}</{name}>" for name, fact in facts if fact]
    return "\n".join([f"<{tag}>", *lines, "<content>", text, "</content>", f"</{tag}>"])
