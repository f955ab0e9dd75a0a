"""Parts of messages as some clients write them, put in the form that every template reads."""

from collections.abc import Mapping
from typing import Any


def spelled_out(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with plain texts as parts of type text, and an assistant's thinking as its reasoning."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    parts = [_as_part(part) for part in content]
    if message.get("role") != "assistant":
        return {**message, "content": parts}
    thoughts = [part["thinking"] for part in parts if _is_thinking(part)]
    rest = {**message, "content": [part for part in parts if not _is_thinking(part)]}
    if not thoughts:
        return rest
    return {"reasoning": "\n".join(thoughts), **rest}


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
