"""Items of the Responses API to chat messages, and to the form in which they are listed."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from weft.core.errors import BadRequest
from weft.schema.responses import (
    FunctionCallInput,
    FunctionOutputInput,
    ItemReferenceInput,
    MessageInput,
    ReasoningInput,
)

Item = dict[str, Any]
Message = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
# A reference is short and its item may be long: no template takes more than this anyway.
_MAX_REFERRED_BYTES = 16 * 1024 * 1024
# Items in one turn of the event loop: 2 ms.
_AT_ONCE = 1000
_Input = TypeVar("_Input", bound=msgspec.Struct)


def new_id(prefix: str) -> str:
    """An id that nobody can guess: who knows it was told it."""
    return f"{prefix}_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request says: its items as they are listed, and as messages for a chat template."""

    items: list[Item]
    messages: list[Message]


async def read_input(
    given: str | Sequence[Item],
    *,
    before: Sequence[Mapping[str, Any]] = (),
    find_item: Callable[[str], Item | None],
) -> Conversation:
    """The input of a request. `before` are the messages that came earlier, for calls that are answered.

    `find_item` looks up an item that is only referred to.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    reader = _Reader(before, find_item)
    for position, item in enumerate(given):
        if position % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        reader.add(item, f"input[{position}]")
    return Conversation(reader.items, reader.messages)


def to_messages(output: Iterable[Item]) -> list[Message]:
    """The messages that a response's own items make, for the next turn."""
    reader = _Reader((), lambda _: None)
    for position, item in enumerate(output):
        reader.add(item, f"output[{position}]")
    return reader.messages


class _Reader:
    """Takes items one by one. Thoughts, words and calls of one turn of the model are one message."""

    def __init__(
        self, before: Sequence[Mapping[str, Any]], find_item: Callable[[str], Item | None]
    ) -> None:
        self.items: list[Item] = []
        self.messages: list[Message] = []
        self._find_item = find_item
        self._num_referred_bytes = 0
        self._name_by_call_id: dict[str, str] = {
            str(call.get("id")): call["function"]["name"]
            for message in before
            for call in message.get("tool_calls") or ()
        }

    def add(self, item: Item, where: str) -> None:
        match _kind(item, where):
            case "message":
                self._add_message(_read(item, MessageInput, where), where)
            case "reasoning":
                self._add_reasoning(_read(item, ReasoningInput, where), where)
            case "function_call":
                self._add_call(_read(item, FunctionCallInput, where), where)
            case "function_call_output":
                self._add_output(_read(item, FunctionOutputInput, where), where)
            case "item_reference":
                self._add_reference(_read(item, ItemReferenceInput, where), where)
            case kind:
                raise BadRequest(
                    "input",
                    f"{where}: items of type {kind[:40]!a} are not taken; there are message, "
                    "reasoning, function_call, function_call_output and item_reference",
                )

    def _add_message(self, item: MessageInput, where: str) -> None:
        if item.role not in _ROLES:
            raise BadRequest(
                "input",
                f"{where}.role must be one of {', '.join(_ROLES)}, got {item.role[:40]!a}",
            )
        parts = _parts(item.content, f"{where}.content")
        content: str | list[Item] = item.content if isinstance(item.content, str) else parts
        is_answer = item.role == "assistant"
        kind = "output_text" if is_answer else "input_text"
        self.items.append(
            {
                "id": item.id or new_id("msg"),
                "type": "message",
                "role": item.role,
                "status": item.status or "completed",
                "content": [_shown(part, kind) for part in parts],
            }
        )
        last = self._open_message()
        if is_answer and last is not None and not {"content", "tool_calls"} & last.keys():
            last["content"] = content
        else:
            self.messages.append({"role": item.role, "content": content})

    def _add_reasoning(self, item: ReasoningInput, where: str) -> None:
        if item.encrypted_content is not None and item.content is None:
            raise BadRequest(
                "input",
                f"{where}.encrypted_content cannot be read here; give the thoughts as content",
            )
        thoughts = _texts(item.content or (), "reasoning_text", f"{where}.content")
        summary = _texts(item.summary, "summary_text", f"{where}.summary")
        self.items.append(
            {
                "id": item.id or new_id("rs"),
                "type": "reasoning",
                "summary": item.summary,
                "content": item.content or [],
                "status": item.status or "completed",
            }
        )
        self._think("\n".join(thoughts or summary))

    def _think(self, thoughts: str) -> None:
        if not thoughts:
            return
        last = self._open_message()
        if last is None or {"content", "tool_calls"} & last.keys():
            self.messages.append({"role": "assistant", "reasoning": thoughts})
        else:
            last["reasoning"] += "\n" + thoughts

    def _add_call(self, item: FunctionCallInput, where: str) -> None:
        if item.namespace is not None:
            raise BadRequest("input", f"{where}.namespace must be absent: functions have none here")
        self._name_by_call_id[item.call_id] = item.name
        self.items.append(
            {
                "id": item.id or new_id("fc"),
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
                "status": item.status or "completed",
            }
        )
        last = self._open_message()
        if last is None:
            last = {"role": "assistant"}
            self.messages.append(last)
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)

    def _add_output(self, item: FunctionOutputInput, where: str) -> None:
        name = self._name_by_call_id.get(item.call_id)
        if name is None:
            raise BadRequest(
                "input", f"{where}: no call has the call_id {item.call_id[:64]!a} that this answers"
            )
        parts = _parts(item.output, f"{where}.output")
        output = item.output
        self.items.append(
            {
                "id": item.id or new_id("fco"),
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": output
                if isinstance(output, str)
                else [_shown(part, "input_text") for part in parts],
                "status": item.status or "completed",
            }
        )
        content = output if isinstance(output, str) else parts
        # Some templates tell a tool's answer by its name.
        self.messages.append(
            {"role": "tool", "tool_call_id": item.call_id, "name": name, "content": content}
        )

    def _add_reference(self, item: ItemReferenceInput, where: str) -> None:
        found = self._find_item(item.id)
        if found is None:
            raise BadRequest("input", f"{where}: there is no stored item {item.id[:64]!a}")
        self._num_referred_bytes += len(msgspec.json.encode(found))
        if self._num_referred_bytes > _MAX_REFERRED_BYTES:
            raise BadRequest(
                "input",
                f"{where}: the items that are referred to take more than {_MAX_REFERRED_BYTES} bytes",
            )
        self.add(found, where)

    def _open_message(self) -> Message | None:
        """The message of the model that goes on, if one does."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" else None


def _kind(item: Item, where: str) -> str:
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    if not isinstance(kind, str):
        raise BadRequest("input", f"{where}.type must be a string")
    return kind


def _read(item: Item, kind: type[_Input], where: str) -> _Input:
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$", f"`{where}")
        raise BadRequest("input", text if where in text else f"{where}: {text}") from None


def _parts(content: str | Sequence[Item], where: str) -> list[Item]:
    """The parts of a content, in chat's words."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part, f"{where}[{position}]") for position, part in enumerate(content)]


def _part(part: Item, where: str) -> Item:
    kind = part.get("type")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    if kind not in _TEXT_PARTS:
        raise BadRequest(
            "input",
            f"{where}: parts of type {str(kind)[:40]!a} are not taken; this server takes text only "
            "(input_text, output_text, refusal)",
        )
    if not isinstance(part.get("text"), str):
        raise BadRequest("input", f"{where}.text must be a string")
    return {"type": "text", "text": part["text"]}


def _texts(parts: Iterable[Item], kind: str, where: str) -> list[str]:
    texts = []
    for position, part in enumerate(parts):
        text = part.get("text")
        if part.get("type") != kind or not isinstance(text, str):
            raise BadRequest("input", f"{where}[{position}] must be of type {kind}, with a text")
        texts.append(text)
    return texts


def _shown(part: Item, kind: str) -> Item:
    """A part as it is listed."""
    if part["type"] == "refusal":
        return part
    shown = {"type": kind, "text": part["text"]}
    return shown | {"annotations": []} if kind == "output_text" else shown
