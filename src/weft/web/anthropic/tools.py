"""Converts Anthropic's tools and tool choice to those of a `Turn`."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import BadRequest
from weft.schema.anthropic import MessageBody, PromptBody, ToolBody
from weft.text.content import Place
from weft.web.anthropic.unsupported import refuse_unsupported
from weft.web.chat.turn import NamedTool, Tool, ToolChoice


def to_tools(body: PromptBody) -> tuple[Tool, ...]:
    """The tools on offer.

    The definition of a deferred tool that a search has found is written in the search's result. In the list of tools at
    the beginning of the prompt, the definition would change the whole prompt, and the prefix cache would no longer
    match.
    """
    place = Place("tools", "tools")
    given = body.tools or []
    tools = tuple(_tool(tool, place[number]) for number, tool in enumerate(given))
    deferred = {tool.name for tool in given if tool.defer_loading}
    found = deferred.intersection(_found_names(body.messages)) if deferred else set()
    if all(tool.name in found for tool in tools):
        return tools
    return tuple(replace(tool, is_in_message=tool.name in found) for tool in tools)


def _found_names(messages: Collection[MessageBody]) -> Iterator[str]:
    """Names that results of searches refer to."""
    for message in messages:
        for block in _objects(message.content):
            for inner in _objects(block.get("content")):
                name = inner.get("tool_name")
                if inner.get("type") == "tool_reference" and isinstance(name, str):
                    yield name


def _objects(content: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        yield from (block for block in content if isinstance(block, Mapping))


def to_choice(body: PromptBody) -> ToolChoice:
    """Returns the tool choice."""
    choice = body.tool_choice
    if choice is None:
        return "auto"
    if choice.type != "tool" and choice.name is not None:
        raise BadRequest("tool_choice", "tool_choice.name goes with type tool")
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool" if choice.name is not None:
            return NamedTool(choice.name)
        case "tool":
            raise BadRequest("tool_choice", "tool_choice.name is missing")
    raise BadRequest(
        "tool_choice",
        f"tool_choice.type must be auto, any, tool or none, got {choice.type[:40]!a}",
    )


def is_parallel(body: PromptBody) -> bool:
    """True if one answer may contain several tool calls."""
    return body.tool_choice is None or not body.tool_choice.disable_parallel_tool_use


def _tool(tool: ToolBody, place: Place) -> Tool:
    if tool.type not in {None, "custom"}:
        raise place.error(
            f": tools of type {tool.type[:64]!a} are not offered: this server runs no tools "
            "itself and has no built-in schemas; use a tool of type custom"
        )
    for name in ("name", "input_schema"):
        if getattr(tool, name) is None:
            raise place.error(f".{name} is missing")
    refuse_unsupported(tool, place)
    return Tool(
        name=tool.name or "",
        description=tool.description,
        parameters=_parameters(tool),
        is_strict=bool(tool.strict),
    )


def _parameters(tool: ToolBody) -> dict[str, Any]:
    """The schema, with the tool's examples in the keyword `examples`."""
    schema = tool.input_schema or {}
    return schema | {"examples": tool.input_examples} if tool.input_examples else schema
