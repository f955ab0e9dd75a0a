"""Tools that the client runs, in the form that the model sees: functions, custom tools with text input, and
namespaces of both.

The model knows only functions with flat names: a tool of a namespace gets a combined name, and a custom tool has one
argument, its text. Items of calls use the client's names again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.schema.response_object import CustomTool, FunctionTool, McpTool, NamespaceTool
from weft.schema.responses import ResponsesTool
from weft.web.chat.turn import Tool

CLIENT_TYPES = ("function", "custom", "namespace")
# Tools that only OpenAI's servers can run, or whose calls have item types of their own: models here cannot call them,
# and clients work without them.
PASSED_OVER = frozenset(
    "web_search web_search_preview local_shell shell apply_patch image_generation code_interpreter "
    "file_search computer_use_preview tool_search".split()
)
# Items of such tools, made for another model: no answer of this server's has any, and its model has seen none.
_PASSED_OVER_ITEMS = frozenset(
    "web_search_call image_generation_call code_interpreter_call file_search_call computer_call "
    "computer_call_output shell_call shell_call_output apply_patch_call apply_patch_call_output "
    "tool_search_call tool_search_output additional_tools".split()
)
_INPUT = "input"
_INPUT_SCHEMA = {
    "type": "object",
    "properties": {_INPUT: {"type": "string", "description": "The whole input, as text."}},
    "required": [_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Called:
    """A tool of the client's, found by the name that the model used."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def is_passed_over(item: Mapping[str, Any]) -> bool:
    """True for a conversation item that no model of this server has seen or can read."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in _PASSED_OVER_ITEMS


def flat_name(name: str, namespace: str | None) -> str:
    """The name that the model calls a tool by."""
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


def to_functions(tool: ResponsesTool, namespace: str | None = None) -> Iterator[Tool]:
    """A tool of the client's as functions of the model."""
    if tool.type == "namespace":
        for inner in tool.tools or ():
            yield from to_functions(inner, tool.name)
        return
    is_custom = tool.type == "custom"
    yield Tool(
        name=flat_name(tool.name or "", namespace),
        description=_description(tool) if is_custom else tool.description,
        parameters=_INPUT_SCHEMA if is_custom else tool.parameters,
        is_strict=bool(tool.strict),
    )


def _description(tool: ResponsesTool) -> str | None:
    """A custom tool's description, with the grammar of its input."""
    form = tool.format or {}
    if form.get("type") != "grammar":
        return tool.description
    grammar = (
        f"The input follows this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
    )
    return f"{tool.description}\n\n{grammar}" if tool.description else grammar


def to_shown(tool: ResponsesTool) -> FunctionTool | CustomTool | NamespaceTool:
    """A tool of the client's as the response shows it."""
    name = tool.name or ""
    if tool.type == "namespace":
        shown = [to_shown(inner) for inner in tool.tools or ()]
        tools = [inner for inner in shown if not isinstance(inner, NamespaceTool)]
        return NamespaceTool(name=name, description=tool.description, tools=tools)
    if tool.type == "custom":
        return CustomTool(name=name, description=tool.description, format=tool.format)
    return FunctionTool(
        name=name,
        description=tool.description,
        parameters=tool.parameters,
        strict=bool(tool.strict),
    )


def called_by_name(
    shown: Iterable[FunctionTool | CustomTool | NamespaceTool | McpTool],
) -> dict[str, Called]:
    """The client's tools of a response that need other words than the model's."""
    called: dict[str, Called] = {}
    for tool in shown:
        if isinstance(tool, CustomTool):
            called[tool.name] = Called(tool.name, is_custom=True)
        elif isinstance(tool, NamespaceTool):
            for inner in tool.tools:
                is_custom = isinstance(inner, CustomTool)
                called[flat_name(inner.name, tool.name)] = Called(inner.name, tool.name, is_custom)
    return called


def to_arguments(text: str) -> str:
    """The input of a custom tool as arguments of a function."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def to_input(arguments: str) -> str:
    """The input of a custom tool, from its arguments; arguments that were cut off are returned unchanged."""
    try:
        read: Any = json.loads(arguments)
    except ValueError:
        return arguments
    given = read.get(_INPUT) if isinstance(read, Mapping) else None
    return given if isinstance(given, str) else arguments
