"""Converts Cohere's messages, tools and documents to those of a `Turn`, which have OpenAI's form."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from weft.text.content import PartTypes, Place, Text, read_parts
from weft.web.chat.turn import Tool, ToolChoice
from weft.web.cohere.bodies import CalledCohereTool, CohereChatBody, CohereDocument, CohereMessage

_ROLES = ("system", "developer", "user", "assistant", "tool")
_PLACE = Place("messages", "messages")


class _Thinking(msgspec.Struct, frozen=True, kw_only=True):
    thinking: str


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    document: CohereDocument


def _types(**structs: type[msgspec.Struct]) -> PartTypes[msgspec.Struct]:
    return PartTypes(
        structs=structs,
        if_unknown="{part}.type must be one of {types} here, got {type!a}",
        if_untyped="{part}.type is missing, or no string",
        if_malformed="{part}: {error}",
    )


_OF_ASSISTANT = _types(text=Text, thinking=_Thinking)
_OF_TOOL = _types(text=Text, document=_Document)


def to_messages(messages: Sequence[CohereMessage]) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form. Parts of users and systems have that form already."""
    return [_message(message, _PLACE[position]) for position, message in enumerate(messages)]


def to_tools(body: CohereChatBody) -> list[Tool]:
    """The tools that the model may call."""
    return [
        Tool(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            is_strict=bool(body.strict_tools),
        )
        for tool in body.tools or ()
    ]


def to_choice(body: CohereChatBody) -> ToolChoice:
    """The choice between the tools; the model's own unless the body says otherwise."""
    match body.tool_choice:
        case "NONE":
            return "none"
        case "REQUIRED":
            return "required"
    return "auto"


def to_documents(
    documents: Sequence[str | CohereDocument] | None,
) -> list[Mapping[str, Any]] | None:
    """The documents as templates read them: names and values. A text has the name `text`."""
    return None if documents is None else [_document(document) for document in documents]


def _document(document: str | CohereDocument) -> Mapping[str, Any]:
    if isinstance(document, str):
        return {"text": document}
    return document.data if document.id is None else {"id": document.id, **document.data}


def _message(message: CohereMessage, at: Place) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise at.error(f".role must be one of {', '.join(_ROLES)}, got {message.role[:40]!a}")
    for name in ("tool_calls", "tool_plan"):
        if getattr(message, name) and message.role != "assistant":
            raise at.error(f".{name} is for messages of the assistant")
    if (message.tool_call_id is None) == (message.role == "tool"):
        raise at.error(".tool_call_id and role tool need each other")
    match message.role:
        case "assistant":
            return _of_assistant(message, at)
        case "tool":
            content = "\n".join(_result(message, at))
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    return {"role": message.role, "content": message.content}


def _of_assistant(message: CohereMessage, at: Place) -> dict[str, Any]:
    parts = [part for _, part in read_parts(message.content or "", _OF_ASSISTANT, at)]
    reasoning = [part.thinking for part in parts if isinstance(part, _Thinking)]
    reasoning += [message.tool_plan] if message.tool_plan else []
    text = "".join(part.text for part in parts if isinstance(part, Text))
    made: dict[str, Any] = {"role": "assistant", "content": text or None}
    if reasoning:
        made["reasoning"] = "\n".join(reasoning)
    if message.tool_calls:
        made["tool_calls"] = list(map(_call, message.tool_calls))
    return made


def _call(call: CalledCohereTool) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _result(message: CohereMessage, at: Place) -> Iterator[str]:
    """Texts of a tool's result; a document is JSON."""
    for _, part in read_parts(message.content or "", _OF_TOOL, at.field("content")):
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, _Document):
            yield json.dumps(_document(part.document), ensure_ascii=False)
