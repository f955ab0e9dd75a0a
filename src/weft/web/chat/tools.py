"""Tools: checks of a caller's tools, their form for templates, and the constraint that forces a call."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from weft.core.checks.json_schema import without_nulls
from weft.core.checks.structured import (
    check_depth,
    check_strict,
    schema_of,
    validate_structured_outputs,
)
from weft.core.errors import BadRequest
from weft.core.values.patterns import TOOL_NAME, TOOL_NAME_RULE
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.text.parsers.call_tags import call_tag
from weft.text.parsers.families import ToolFamily
from weft.web.chat.turn import NamedTool, Tool, ToolChoice, Turn

# Agents with many tool servers send hundreds of tools.
MAX_TOOLS = 1024
MAX_TOOL_DEPTH = 128
# Size of all tools together, as JSON: they become part of the prompt.
MAX_TOOL_CHARS = 1024 * 1024
# Maximum number of calls in a forced JSON array: a model that was not trained on such arrays does not stop by itself,
# and would fill its context with calls. In the model's own format the number is not limited.
MAX_FORCED_CALLS = 32

_DATA = frozenset({"const", "enum", "default", "example", "examples"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DOCUMENT = frozenset({"$schema", "$id"})
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises `BadRequest` unless all tools are valid and the choice names one of them.

    Schemas are checked only if a call is forced; otherwise they are just a part of the prompt.
    """
    if not tools and choice in ("auto", "none"):
        return
    if len(tools) > MAX_TOOLS:
        raise BadRequest("tools", f"tools takes at most {MAX_TOOLS} tools, got {len(tools)}")
    num_chars = 0
    for position, tool in enumerate(tools):
        _check_name(tool.name, position)
        num_chars += len(tool.description or "") + _check_parameters(tool, position)
    if num_chars > MAX_TOOL_CHARS:
        raise BadRequest(
            "tools",
            f"descriptions and parameters of all tools take at most {MAX_TOOL_CHARS} characters, "
            f"got {num_chars}",
        )
    if isinstance(choice, NamedTool) and all(tool.name != choice.name for tool in tools):
        raise BadRequest(
            "tool_choice", f"tool_choice names {choice.name[:64]!a}, which is none of the tools"
        )
    if choice == "required" and not tools:
        raise BadRequest("tool_choice", "tool_choice is required, but there are no tools")
    if is_forced(choice):
        _check_forced(tools, choice)


def listed_tools(tools: Sequence[Tool]) -> list[Tool]:
    """The tools that the prompt lists: all but those whose definitions stand in messages."""
    return [tool for tool in tools if not tool.is_in_message]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools in the form that templates expect; None for none."""
    return [{"type": "function", "function": definition(tool)} for tool in tools] or None


def is_forced(choice: ToolChoice) -> bool:
    """True if the answer must be a tool call."""
    return choice == "required" or isinstance(choice, NamedTool)


def forced_calls(
    turn: Turn,
    family: ToolFamily | None,
    *,
    has_reasoning: bool,
    num_earlier_calls: int,
    end_texts: Sequence[str],
) -> StructuredOutputsParams | None:
    """Returns the constraint for a forced tool call; None if the caller forces none.

    The constraint uses the model's own format if its family can express these tools; otherwise a named call is its
    arguments alone, and required calls are an array of `{"name", "parameters"}`.
    """
    choice = turn.tool_choice
    if not is_forced(choice):
        return None
    named = choice.name if isinstance(choice, NamedTool) else None
    tools = [tool for tool in turn.tools if named in (None, tool.name)]
    is_parallel = turn.parallel_tool_calls and named is None
    tag = None
    if family is not None:
        tag = call_tag(
            family,
            {tool.name: _arguments_schema(tool) for tool in tools},
            is_parallel=is_parallel,
            has_reasoning=has_reasoning,
            num_earlier_calls=num_earlier_calls,
            end_texts=end_texts,
        )
    if tag is not None:
        own = StructuredOutputsParams(structural_tag=json.dumps(tag, ensure_ascii=False))
        with suppress(BadRequest):  # too large to build; the array's schema is used without it
            validate_structured_outputs(own)
            return own
    schema = _arguments_schema(tools[0]) if named else _calls_schema(tools, is_parallel=is_parallel)
    return StructuredOutputsParams(json=json.dumps(schema))


def is_own_format(params: SamplingParams) -> bool:
    """True if forced tool calls are in the format of the model's family."""
    wanted = params.structured_outputs
    return wanted is not None and wanted.structural_tag is not None


def _check_name(name: str, position: int) -> None:
    if not TOOL_NAME.fullmatch(name):
        raise BadRequest(
            "tools",
            f"tools[{position}]: a name has {TOOL_NAME_RULE}, got {name[:64]!a}",
        )


def _check_parameters(tool: Tool, position: int) -> int:
    """Length of the schema; raises `BadRequest` if it is not the schema of an object."""
    if tool.parameters is None:
        return 0
    where = _place_of(tool, position)
    schema = _parameters(tool)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise BadRequest("tools", f'{where} must be of type "object", got {str(kind)[:40]!a}')
    if not isinstance(schema.get("properties", {}), dict):
        raise BadRequest("tools", f"{where}: properties must be an object")
    if not _is_list_of_text(schema.get("required", [])):
        raise BadRequest("tools", f"{where}: required must be a list of names")
    try:
        return len(json.dumps(schema, allow_nan=False))
    except ValueError as error:
        raise BadRequest("tools", f"{where} must be plain JSON: {error}") from error


def _check_forced(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Checks the schemas of tools whose calls are forced, and that their names differ."""
    by_name: dict[str, Tool] = {}
    for position, tool in enumerate(tools):
        if isinstance(choice, NamedTool) and tool.name != choice.name:
            continue
        if by_name.setdefault(tool.name, tool) != tool:
            raise BadRequest(
                "tools",
                f"tools[{position}]: there are two tools named {tool.name!r}, and a call is forced",
            )
        where = _place_of(tool, position)
        try:
            schema_of(dict(tool.parameters or {}))
        except BadRequest as error:
            raise BadRequest("tools", f"{where}: {error}") from error
        if tool.is_strict:
            check_strict("tools", where, tool.parameters)


def _parameters(tool: Tool) -> dict[str, Any]:
    """The schema for a template: an object without null values."""
    schema = tool.parameters or _NO_PARAMETERS
    check_depth("tools", schema, MAX_TOOL_DEPTH)
    plain: dict[str, Any] = without_nulls(schema)
    return plain


def _place_of(tool: Tool, position: int) -> str:
    return f"tools[{position}] ({tool.name}): parameters"


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def definition(tool: Tool) -> dict[str, Any]:
    """The tool as a model reads it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    # Templates read this key without checking that it exists.
    function["parameters"] = _parameters(tool)
    return function


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of the tool's arguments, which are always an object."""
    schema = _NO_PARAMETERS if tool.parameters is None else without_nulls(tool.parameters)
    return {**schema, "type": "object"}


def _calls_schema(tools: Sequence[Tool], *, is_parallel: bool) -> dict[str, Any]:
    definitions = {
        f"tool{position}": _moved(_arguments_schema(tool), f"#/$defs/tool{position}")
        for position, tool in enumerate(tools)
    }
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "parameters": {"$ref": f"#/$defs/tool{position}"},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for position, tool in enumerate(tools)
    ]
    return {
        "$defs": definitions,
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_FORCED_CALLS if is_parallel else 1,
        "items": {"anyOf": calls},
    }


def _moved(schema: Any, root: str, *, is_map: bool = False) -> Any:
    """A schema that was moved into another document: its references get the prefix `root`.

    A `$ref` that is data stays; in a map from names to schemas, keys have no meaning.
    """
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if is_map:
        return {name: _moved(value, root) for name, value in schema.items()}
    moved = {
        key: value if key in _DATA else _moved(value, root, is_map=key in _MAPS)
        for key, value in schema.items()
        if key not in _DOCUMENT
    }
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = root + reference[1:]
    return moved
