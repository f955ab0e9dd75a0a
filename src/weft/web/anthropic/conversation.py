"""Converts Anthropic's messages to those of a `Turn`, which have OpenAI's form.

A user's tool results become messages of their own before the rest of the user's message. Adjacent messages of one
role are joined.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from weft.core.errors import BadRequest
from weft.schema.anthropic import (
    Block,
    MessageBody,
    PromptBody,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from weft.text.content import PartTypes, Place
from weft.web.anthropic.blocks import (
    IN_RESULT,
    IN_RESULT_SEEN,
    OF_ASSISTANT,
    OF_USER,
    OF_USER_SEEN,
    TEXT,
    read_blocks,
    to_part,
    to_texts,
)
from weft.web.chat.tools import definition
from weft.web.chat.turn import Tool

Message: TypeAlias = dict[str, Any]
# Claude Code's first system text: not meant for the model, and different in each request, so that nothing after it
# would be found in the prefix cache.
_BILLING = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\s*")
_Role: TypeAlias = Literal["user", "assistant", "system"]
_TYPES_BY_ROLE: Mapping[_Role, PartTypes[Block]] = {
    "user": OF_USER,
    "assistant": OF_ASSISTANT,
    "system": TEXT,
}
_TYPES_WITH_IMAGES: Mapping[_Role, PartTypes[Block]] = {**_TYPES_BY_ROLE, "user": OF_USER_SEEN}


@dataclass(slots=True)
class _Speech:
    """Consecutive blocks of one role; each block has its place in the body."""

    role: _Role
    blocks: list[tuple[Place, Block]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Results:
    """Types of the blocks in results of calls, and definitions of tools that results refer to, by name."""

    types: PartTypes[Block]
    definitions: Mapping[str, str]


def to_messages(
    body: PromptBody, *, takes_images: bool = False, tools: Sequence[Tool] = ()
) -> list[Message]:
    """The conversation, with its system prompt first. `tools` may include some that are defined in its messages."""
    reading = _Results(
        IN_RESULT_SEEN if takes_images else IN_RESULT,
        {tool.name: _defined(tool) for tool in tools if tool.is_in_message},
    )
    types_by_role = _TYPES_WITH_IMAGES if takes_images else _TYPES_BY_ROLE
    messages: list[Message] = []
    system = to_texts(body.system or "", TEXT, Place("system", "system"))
    system = [text for text in system if not _BILLING.fullmatch(text)]
    if any(system):
        messages.append({"role": "system", "content": "".join(system)})
    # Names by id, of the tool_use blocks in the assistant's last message.
    open_calls: dict[str, str] = {}
    for speech in _merged(body.messages, types_by_role):
        match speech.role:
            case "system":
                messages.append({"role": "system", "content": _content(speech.blocks)})
            case "user":
                messages += _of_user(speech.blocks, open_calls, reading)
            case "assistant":
                open_calls = _calls(speech.blocks)
                messages.append(_of_assistant([block for _, block in speech.blocks]))
    return messages


def is_prefill(messages: Sequence[Message]) -> bool:
    """True if the answer continues the last message instead of beginning a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        return False
    if messages[-1].get("tool_calls"):
        raise BadRequest(
            "messages", "the last message has tool_use blocks: their tool_result blocks must follow"
        )
    return True


def _merged(
    messages: Sequence[MessageBody], types_by_role: Mapping[_Role, PartTypes[Block]]
) -> list[_Speech]:
    """The blocks of all messages, joined for adjacent messages of one role. An assistant's message may be empty."""
    merged: list[_Speech] = []
    for position, message in enumerate(messages):
        place = Place("messages", "messages")[position]
        role = next((role for role in types_by_role if role == message.role), None)
        if role is None:
            raise place.error(
                f".role must be one of {', '.join(types_by_role)}, got {message.role[:40]!a}"
            )
        types = types_by_role[role]
        blocks = list(read_blocks(message.content, types, place.field("content")))
        if role == "assistant":
            blocks = [(at, block) for at, block in blocks if _says_something(block)]
            if not blocks:
                continue
        elif not message.content:
            raise place.error(".content is empty; only an assistant's may be")
        if not merged or merged[-1].role != role:
            merged.append(_Speech(role))
        merged[-1].blocks += blocks
    return merged


def _says_something(block: Block) -> bool:
    """True if the model reads any part of an assistant's block."""
    match block:
        case TextBlock(text=text) | ThinkingBlock(thinking=text):
            return bool(text)
        case _:
            return isinstance(block, ToolUseBlock)


def _of_user(
    blocks: Sequence[tuple[Place, Block]],
    open_calls: dict[str, str],
    reading: _Results,
) -> list[Message]:
    results = [
        _result(block, at, open_calls, reading)
        for at, block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    rest = [(at, block) for at, block in blocks if not isinstance(block, ToolResultBlock)]
    return [*results, {"role": "user", "content": _content(rest)}] if rest else results


def _content(blocks: Sequence[tuple[Place, Block]]) -> str | list[Message]:
    """Parts for templates that accept parts; for a single text, its string."""
    parts = [to_part(block, at) for at, block in blocks]
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts


def _result(
    block: ToolResultBlock, at: Place, open_calls: dict[str, str], reading: _Results
) -> Message:
    name = open_calls.pop(block.tool_use_id, None)
    if name is None:
        raise at.error(
            f".tool_use_id {block.tool_use_id[:64]!a} must be the id of a tool_use block of the "
            "assistant's last message, and have one result"
        )
    blocks = read_blocks(block.content or "", reading.types, at.field("content"))
    parts = [_part(inner, place, reading) for place, inner in blocks]
    images = [part for part in parts if part["type"] != "text"]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.is_error:
        # Templates have no field for failed calls, so the text tells the model.
        text = f"Error: {text}"
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": name,
        "content": [{"type": "text", "text": text}, *images] if images else text,
    }


def _part(block: Block, at: Place, reading: _Results) -> Message:
    if isinstance(block, ToolReferenceBlock) and block.tool_name in reading.definitions:
        return {"type": "text", "text": reading.definitions[block.tool_name]}
    return to_part(block, at)


def _defined(tool: Tool) -> str:
    """A tool's definition in the form that Claude Code announces to the model."""
    written = json.dumps(definition(tool), ensure_ascii=False)
    return f"<functions>\n<function>{written}</function>\n</functions>"


def _calls(blocks: Sequence[tuple[Place, Block]]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for at, block in blocks:
        if isinstance(block, ToolUseBlock):
            if block.id in calls:
                raise at.error(".id is that of another tool_use block")
            calls[block.id] = block.name
    return calls


def _of_assistant(blocks: Sequence[Block]) -> Message:
    message: Message = {"role": "assistant", "content": None}
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    reasoning = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    if texts:
        message["content"] = "".join(texts)
    if reasoning:
        message["reasoning"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUseBlock) -> Message:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}
