"""Converts the messages of a conversation to the form that a chat template accepts, according to the template's facts.

Clients send messages that came from other servers or models, or that they wrote themselves: with call ids of another
form, cut-off arguments, or system messages in the middle. A template for one model refuses many such messages.
"""

import hashlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from itertools import chain, takewhile
from typing import Any, TypeAlias

from weft.core.errors import BadRequest
from weft.core.values.media import MODALITIES
from weft.text.content import CHAT_PARTS, Place, Placeholder, Refusal, Text, read_part, to_wire
from weft.text.parsers.families import ToolFamily
from weft.text.templates.call_arguments import read_arguments
from weft.text.templates.template_facts import TemplateFacts
from weft.text.templates.written_calls import RESULT_ROLES, USUAL_FAMILY, write_calls

_Message: TypeAlias = dict[str, Any]

_SYSTEM_ROLES = ("system", "developer")
# Roles whose content has the same form as that of another role.
_SIMILAR_ROLES = {"developer": "system", "function": "tool"}
SHORT_ID_LENGTH, SHORT_ID_LETTERS = 9, string.ascii_letters + string.digits
_SHORT_ID = re.compile(f"[a-zA-Z0-9]{{{SHORT_ID_LENGTH}}}")


def normalise_messages(
    messages: object, facts: TemplateFacts, family: ToolFamily = USUAL_FAMILY
) -> list[_Message]:
    """Messages in the form that a template with these facts takes.

    If the template does not write past tool calls, they become text in the format of `family`.

    Contents become strings (text parts joined by newlines) or lists of parts; arguments of past calls,
    which requests contain as JSON text, become objects or stay text; invalid arguments become `{}`.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise BadRequest("messages", "messages must be a list of at least one message")
    if not (facts.writes_calls and facts.takes_results):
        messages = write_calls(messages, facts, family)
    normal = [_normalise(message, position, facts) for position, message in enumerate(messages)]
    if facts.needs_null_content:
        normal = [part for message in normal for part in _without_text(message)]
    if not facts.takes_parallel_calls:
        normal = _one_call_a_message(normal)
    if any(map(_is_system, normal)):
        normal = _merge_systems(normal, facts)
    if not (facts.takes_two_users and facts.takes_user_after_result):
        normal = _merge_users(normal, facts)
    return normal


# -- one message --------------------------------------------------------------------------------


def _normalise(message: object, position: int, facts: TemplateFacts) -> _Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequest("messages", f"messages[{position}] must be an object with a role")
    normal = dict(message)
    normal["content"] = _content(message, position, facts)
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        normal["tool_calls"] = [_normal_call(call, facts) for call in calls]
    if facts.needs_short_ids and isinstance(message.get("tool_call_id"), str):
        normal["tool_call_id"] = short_id(message["tool_call_id"])
    return normal


def _content(
    message: Mapping[str, Any], position: int, facts: TemplateFacts
) -> str | list[dict[str, Any]]:
    given, role = message.get("content"), message["role"]
    role = _SIMILAR_ROLES.get(role, role)
    if isinstance(given, str):
        return _as_read(given, role, facts)
    parts = _parts(given, position)
    if role in facts.part_roles:
        return parts or _as_read("", role, facts)
    if any(part["type"] in MODALITIES for part in parts):
        raise BadRequest(
            "messages",
            f"messages[{position}].content: this chat template takes texts, and says nowhere what stands for "
            "media; the server may be given another (--chat-template)",
        )
    return _as_read("\n".join(part["text"] for part in parts), role, facts)


def _as_read(text: str, role: str, facts: TemplateFacts) -> str | list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if role in facts.textless_roles else text


def _parts(content: object, position: int) -> list[dict[str, Any]]:
    """Parts of text; an assistant's refusal becomes text."""
    if content is None:
        return []
    place = Place("messages", f"messages[{position}].content")
    if not isinstance(content, Sequence):
        raise place.error(" must be a string, a list of parts or null")
    return [_part(part, place[at]) for at, part in enumerate(content)]


def _part(given: object, place: Place) -> dict[str, Any]:
    if isinstance(given, Placeholder):
        return {"type": given.modality}
    part = read_part(given, CHAT_PARTS, place)
    return to_wire(Text(text=part.refusal) if isinstance(part, Refusal) else part)


# -- calls --------------------------------------------------------------------------------------


def _normal_call(call: object, facts: TemplateFacts) -> object:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    function["arguments"] = _arguments(function.get("arguments"), as_text=facts.takes_argument_text)
    normal = {**call, "function": function}
    if facts.needs_short_ids and isinstance(call.get("id"), str):
        normal["id"] = short_id(call["id"])
    return normal


def _arguments(given: object, *, as_text: bool) -> object:
    """Arguments as an object, or as the JSON text of one: the client's own where it is that."""
    read = read_arguments(given)
    if not as_text:
        return read
    return given if read and isinstance(given, str) else json.dumps(read, ensure_ascii=False)


def short_id(call_id: str) -> str:
    """The id if it has nine letters and digits; otherwise an id of nine characters derived from it."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode(errors="surrogatepass")).digest()
    return "".join(
        SHORT_ID_LETTERS[byte % len(SHORT_ID_LETTERS)] for byte in digest[:SHORT_ID_LENGTH]
    )


def _without_text(message: _Message) -> list[_Message]:
    """Splits a message with text and calls: first the text, then the calls with null content."""
    if not message.get("tool_calls"):
        return [message]
    calling = {**message, "content": None}
    if not message["content"]:
        return [calling]
    return [{"role": message["role"], "content": message["content"]}, calling]


def _one_call_a_message(messages: Sequence[_Message]) -> list[_Message]:
    """Splits messages with several tool calls: one call per message, each followed by its results."""
    split: list[_Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            split.append(message)
            continue
        end = position
        while end < len(messages) and messages[end]["role"] in RESULT_ROLES:
            end += 1
        split += _call_by_call(message, calls, messages[position:end])
        position = end
    return split


def _call_by_call(
    message: _Message, calls: Sequence[Any], results: Sequence[_Message]
) -> list[_Message]:
    """Splits calls, each with its results; results without a matching call follow the last one."""
    split: list[_Message] = []
    left = list(results)
    calling: _Message = {**message}
    for call in calls:
        call_id = call.get("id") if isinstance(call, Mapping) else None
        own = [result for result in left if result.get("tool_call_id") == call_id]
        split += [{**calling, "tool_calls": [call]}, *own]
        left = [result for result in left if result not in own]
        calling = {"role": message["role"], "content": message["content"] and ""}
    return [*split, *left]


# -- order --------------------------------------------------------------------------------------


def _merge_systems(messages: list[_Message], facts: TemplateFacts) -> list[_Message]:
    """Joins system messages that the template would refuse or ignore to the first system message. If the template has
    no system role, the system texts go into the first user message.
    """
    leading = list(takewhile(_is_system, messages))
    rest = messages[len(leading) :]
    late = [] if facts.takes_late_system else list(filter(_is_system, rest))
    systems = [*leading, *late]
    others = [message for message in rest if message not in late]
    if systems and not facts.takes_system and others and others[0]["role"] == "user":
        return [{**_joined([*systems, others[0]]), "role": "user"}, *others[1:]]
    if not late and (len(leading) < 2 or facts.takes_two_systems):
        return messages
    return [_joined(systems), *others]


def _merge_users(messages: list[_Message], facts: TemplateFacts) -> list[_Message]:
    """Joins a user message to the one before it, if the template refuses two in a row."""
    merged: list[_Message] = []
    for message in messages:
        before = merged[-1]["role"] if merged and message["role"] == "user" else None
        if (before == "user" and not facts.takes_two_users) or (
            before in RESULT_ROLES and not facts.takes_user_after_result
        ):
            merged[-1] = _joined([merged[-1], message])
        else:
            merged.append(message)
    return merged


def _is_system(message: _Message) -> bool:
    return message["role"] in _SYSTEM_ROLES


def _joined(messages: Sequence[_Message]) -> _Message:
    """The first message, with the contents of all messages."""
    contents = [message["content"] for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[0], "content": "\n\n".join(contents)}
    as_parts = [
        [{"type": "text", "text": content}] if isinstance(content, str) else content
        for content in contents
    ]
    return {**messages[0], "content": list(chain.from_iterable(as_parts))}
