"""Past calls and their results as texts, for chat templates that write none of them.

Some templates have no format for tool calls, or expect callers to write the format themselves. Without this conversion
such a model would see its earlier answers without their calls, and would not see the results.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from weft.text.parsers.call_tags import write_call
from weft.text.parsers.families import ToolFamily
from weft.text.parsers.table import TOOL_PARSERS, choose_tool_parser
from weft.text.templates.call_arguments import read_arguments
from weft.text.templates.template_facts import TemplateFacts

_Message: TypeAlias = Mapping[str, Any]

USUAL_FAMILY = TOOL_PARSERS["hermes"]
_RESULT_START, _RESULT_END = "<tool_response>", "</tool_response>"
RESULT_ROLES = ("tool", "function")


def family_of(source: str, name: str | None) -> ToolFamily:
    """Returns the tool family whose format is used for past calls: the family of the parser `name`, or else the family
    that the template's format belongs to.
    """
    return TOOL_PARSERS.get(name or choose_tool_parser(source) or "", USUAL_FAMILY)


def write_calls(
    messages: Sequence[object], facts: TemplateFacts, family: ToolFamily
) -> list[object]:
    """Messages with calls and results as texts where the template does not write them."""
    return [_written(message, facts, family) for message in messages]


def _written(message: object, facts: TemplateFacts, family: ToolFamily) -> object:
    if not isinstance(message, Mapping):
        return message
    if not facts.takes_results and message.get("role") in RESULT_ROLES:
        content = _around(_RESULT_START, message.get("content"), _RESULT_END)
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if facts.writes_calls or not calls or not isinstance(calls, Sequence):
        return message
    text = "\n".join(_call(call, family) for call in calls)
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": _around(None, message.get("content"), text)}


def _call(call: Any, family: ToolFamily) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    name, arguments = str(function.get("name", "")), read_arguments(function.get("arguments"))
    written = write_call(family, name, arguments)
    return written or write_call(USUAL_FAMILY, name, arguments) or ""


def _around(before: str | None, content: object, after: str) -> object:
    """Content with lines before and behind it, in its own form."""
    if not content:
        content = ""
    if isinstance(content, str):
        return "\n".join(text for text in (before, content, after) if text)
    if not isinstance(content, Sequence):
        return content
    texts = ([{"type": "text", "text": text}] if text else [] for text in (before, after))
    first, last = texts
    return [*first, *content, *last]
