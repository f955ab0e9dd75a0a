"""Anthropic's messages as the messages of a `Turn`, which are in OpenAI's shape.

A user's tool results become messages of their own before the rest of what the user said. Thoughts of
the assistant are its reasoning. Neighbours of one role are one message.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from weft.core.errors import BadRequest
from weft.schema.anthropic import (
    Block,
    MessageBody,
    PromptBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from weft.web.anthropic.blocks import (
    OF_ASSISTANT,
    OF_USER,
    READABLE,
    TEXT,
    read_blocks,
    to_text,
)

Message: TypeAlias = dict[str, Any]
_Role: TypeAlias = Literal["user", "assistant", "system"]
_KINDS: dict[str, tuple[_Role, Sequence[str]]] = {
    "user": ("user", OF_USER),
    "assistant": ("assistant", OF_ASSISTANT),
    "system": ("system", TEXT),
}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block and where it is in the body."""

    block: Block
    at: str


@dataclass(slots=True)
class _Said:
    """What one side said before the other had its turn."""

    role: _Role
    blocks: list[_Placed]


def to_messages(body: PromptBody) -> list[Message]:
    """The conversation, its system prompt first."""
    messages: list[Message] = []
    if system := _system(body):
        messages.append({"role": "system", "content": system})
    open_calls: dict[str, str] = {}  # names by id, of the assistant's last message
    for said in _merged(body.messages):
        match said.role:
            case "system":
                messages.append({"role": "system", "content": _content(said.blocks)})
            case "user":
                messages += _of_user(said.blocks, open_calls)
            case "assistant":
                open_calls = _calls(said.blocks)
                messages.append(_of_assistant(said.blocks))
    return messages


def is_prefill(messages: Sequence[Message]) -> bool:
    """Whether the answer goes on with the last message, rather than beginning a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        return False
    if messages[-1].get("tool_calls"):
        raise BadRequest(
            "messages", "the last message has tool_use blocks: their tool_result blocks must follow"
        )
    return True


def _system(body: PromptBody) -> str:
    if body.system is None:
        return ""
    blocks = read_blocks(body.system, TEXT, "system", "system")
    return "".join(to_text(block, "system", "system") for block in blocks)


def _merged(messages: Sequence[MessageBody]) -> list[_Said]:
    """The messages' blocks, neighbours of one role together. An assistant may have said nothing."""
    merged: list[_Said] = []
    for position, message in enumerate(messages):
        at = f"messages[{position}]"
        if message.role not in _KINDS:
            raise BadRequest(
                "messages",
                f"{at}.role must be one of {', '.join(_KINDS)}, got {message.role[:40]!a}",
            )
        role, kinds = _KINDS[message.role]
        blocks = [
            _Placed(block, f"{at}.content[{number}]")
            for number, block in enumerate(
                read_blocks(message.content, kinds, "messages", f"{at}.content")
            )
        ]
        if role == "assistant":
            blocks = [placed for placed in blocks if _says_something(placed.block)]
            if not blocks:
                continue
        elif not message.content:
            raise BadRequest("messages", f"{at}.content is empty; only an assistant's may be")
        if merged and merged[-1].role == role:
            merged[-1].blocks += blocks
        else:
            merged.append(_Said(role, blocks))
    return merged


def _says_something(block: Block) -> bool:
    """Whether anything of an assistant's block reaches the model."""
    match block:
        case TextBlock(text=text) | ThinkingBlock(thinking=text):
            return bool(text)
        case _:
            return isinstance(block, ToolUseBlock)


def _of_user(blocks: Sequence[_Placed], open_calls: dict[str, str]) -> list[Message]:
    results = [
        _result(placed.block, placed.at, open_calls)
        for placed in blocks
        if isinstance(placed.block, ToolResultBlock)
    ]
    rest = [placed for placed in blocks if not isinstance(placed.block, ToolResultBlock)]
    return [*results, {"role": "user", "content": _content(rest)}] if rest else results


def _content(blocks: Sequence[_Placed]) -> str | list[Message]:
    """Parts for templates that tell them apart; one part is its text."""
    texts = [to_text(placed.block, "messages", placed.at) for placed in blocks]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _result(block: ToolResultBlock, at: str, open_calls: dict[str, str]) -> Message:
    name = open_calls.pop(block.tool_use_id, None)
    if name is None:
        raise BadRequest(
            "messages",
            f"{at}.tool_use_id {block.tool_use_id[:64]!a} must be the id of a tool_use block of the "
            "assistant's last message, and have one result",
        )
    content = block.content or ""
    blocks = read_blocks(content, READABLE, "messages", f"{at}.content")
    text = "\n".join(to_text(part, "messages", f"{at}.content") for part in blocks)
    if block.is_error:
        # Templates know no failed calls; the model has to be told in words.
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": text}


def _calls(blocks: Sequence[_Placed]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for placed in blocks:
        if isinstance(placed.block, ToolUseBlock):
            if placed.block.id in calls:
                raise BadRequest("messages", f"{placed.at}.id is that of another tool_use block")
            calls[placed.block.id] = placed.block.name
    return calls


def _of_assistant(blocks: Sequence[_Placed]) -> Message:
    said = [placed.block for placed in blocks]
    message: Message = {"role": "assistant", "content": None}
    texts = [block.text for block in said if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in said if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in said if isinstance(block, ToolUseBlock)]
    if texts:
        message["content"] = "".join(texts)
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUseBlock) -> Message:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}
