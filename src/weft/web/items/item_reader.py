"""`ItemReader`: converts the items of a response's input to the messages of a turn, one by one."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from weft.core.checks.object_ids import new_id
from weft.schema.response_object import McpApprovalRequestItem
from weft.schema.responses import (
    CompactionInput,
    CustomCallInput,
    FunctionCallInput,
    FunctionOutputInput,
    ItemReferenceInput,
    McpApprovalResponseInput,
    McpCallInput,
    McpListToolsInput,
    MessageInput,
    ReasoningInput,
    ShellCallInput,
)
from weft.text.content import (
    PartTypes,
    Place,
    Text,
    joined_text,
    read_part,
    read_parts,
)
from weft.web.items.client_tools import flat_name, is_passed_over, to_arguments
from weft.web.items.content_parts import (
    MEDIA_PARTS,
    TEXT_PARTS,
    ContentPart,
    listed_part,
    to_content,
)
from weft.web.items.summary import opened

Item = dict[str, Any]
Message = dict[str, Any]
_ROLES = ("user", "assistant", "system", "developer")
_Owned: TypeAlias = (
    MessageInput
    | ReasoningInput
    | FunctionCallInput
    | FunctionOutputInput
    | CustomCallInput
    | ShellCallInput
    | McpListToolsInput
    | McpCallInput
    | McpApprovalRequestItem
    | McpApprovalResponseInput
    | CompactionInput
)
_ITEMS: PartTypes[_Owned | ItemReferenceInput] = PartTypes(
    structs={
        "message": MessageInput,
        "reasoning": ReasoningInput,
        "function_call": FunctionCallInput,
        "function_call_output": FunctionOutputInput,
        "custom_tool_call": CustomCallInput,
        "custom_tool_call_output": FunctionOutputInput,
        "local_shell_call": ShellCallInput,
        "local_shell_call_output": FunctionOutputInput,
        "mcp_list_tools": McpListToolsInput,
        "mcp_call": McpCallInput,
        "mcp_approval_request": McpApprovalRequestItem,
        "mcp_approval_response": McpApprovalResponseInput,
        "compaction": CompactionInput,
        "item_reference": ItemReferenceInput,
    },
    if_unknown="{part}: items of type {type!a} are not taken; there are {types}",
    if_untyped="{part}.type must be a string",
    if_malformed="{placed_error}",
)


def _only(name: str) -> PartTypes[Text]:
    message = f"{{part}} must be of type {name}, with a text"
    return PartTypes(structs={name: Text}, if_unknown=message, if_malformed=message)


# An item lists all of its fields except these, its id and its type.
_UNLISTED = frozenset(("id", "encrypted_content", "namespace"))
_LISTED = {
    kind: tuple(name for name in struct.__struct_fields__ if name not in _UNLISTED)
    for kind, struct in _ITEMS.structs.items()
}
_REASONING, _SUMMARY = _only("reasoning_text"), _only("summary_text")
# Beginnings of the ids of items, by type.
_PREFIXES = MappingProxyType(
    {
        "message": "msg",
        "reasoning": "rs",
        "function_call": "fc",
        "function_call_output": "fco",
        "custom_tool_call": "ctc",
        "custom_tool_call_output": "fco",
        "local_shell_call": "lsh",
        "local_shell_call_output": "fco",
        "mcp_list_tools": "mcpl",
        "mcp_call": "mcp",
        "mcp_approval_request": "mcpr",
        "mcp_approval_response": "mcpa",
        "compaction": "cmp",
    }
)
# Limit of stored items that a request refers to: references are short, and their items may be long. No template
# accepts more than this anyway.
_MAX_REFERRED_BYTES = 16 * 1024 * 1024


def with_own_id(item: Item) -> Item:
    """The item with a new id of its type."""
    return {**item, "id": new_id(_PREFIXES.get(item["type"], "item"))}


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call of a server tool that waited for its approval, and got it."""

    request_id: str
    label: str
    name: str
    arguments: str
    place: Place


class ItemReader:
    """Reads items one by one. Reasoning, text and calls of one model turn become one message. Items that `is_part` of a
    conversation may answer calls and requests that are in its other items.
    """

    def __init__(
        self,
        before: Sequence[Mapping[str, Any]],
        find_item: Callable[[str], Item | None],
        *,
        takes_media: bool = False,
        is_part: bool = False,
    ) -> None:
        self._is_part = is_part
        self._types: PartTypes[Any] = MEDIA_PARTS if takes_media else TEXT_PARTS
        self.items: list[Item] = []
        self.messages: list[Message] = []
        self.approved: list[ApprovedCall] = []
        self.listed_labels: set[str] = set()
        self._request_by_id: dict[str, McpApprovalRequestItem] = {}
        self._answered_ids: set[str] = set()
        self._find_item = find_item
        self._num_referred_bytes = 0
        self._name_by_call_id: dict[str, str] = {
            str(call.get("id")): call["function"]["name"]
            for message in before
            for call in message.get("tool_calls") or ()
        }

    def add(self, item: Item, place: Place) -> None:
        if item.get("type") is None:
            item = {**item, "type": "message" if "role" in item else "item_reference"}
        if is_passed_over(item):
            return
        match read_part(item, _ITEMS, place):
            case MessageInput() as message:
                self._add_message(message, place)
            case ReasoningInput() as reasoning:
                self._add_reasoning(reasoning, place)
            case FunctionCallInput() | CustomCallInput() | ShellCallInput() as call:
                self._add_call(call)
            case FunctionOutputInput() as output:
                self._add_output(output, str(item["type"]), place)
            case ItemReferenceInput() as reference:
                self._add_reference(reference, place)
            case CompactionInput() as compaction:
                self._list("compaction", compaction, encrypted_content=compaction.encrypted_content)
                self.messages.append({"role": "assistant", "content": opened(compaction, place)})
            case owned:
                self._add_of_server(owned, place)

    def _add_of_server(
        self,
        item: McpListToolsInput | McpCallInput | McpApprovalRequestItem | McpApprovalResponseInput,
        place: Place,
    ) -> None:
        match item:
            case McpListToolsInput() as listing:
                self.listed_labels.add(listing.server_label)
                self._list("mcp_list_tools", listing)
            case McpCallInput() as made:
                self._list("mcp_call", made)
                text = made.output if made.error is None else _error_text(made.error)
                self._add_made(made.id or new_id("call"), made, text or "")
            case McpApprovalRequestItem() as request:
                self._request_by_id[request.id] = request
                self._list("mcp_approval_request", request)
            case McpApprovalResponseInput() as response:
                self._list("mcp_approval_response", response)
                self._add_approval(response, place)

    def _add_message(self, item: MessageInput, place: Place) -> None:
        if item.role not in _ROLES:
            raise place.error(f".role must be one of {', '.join(_ROLES)}, got {item.role[:40]!a}")
        parts = self._parts(item.content, place.field("content"))
        is_answer = item.role == "assistant"
        listed = [listed_part(part, "output_text" if is_answer else "input_text") for part in parts]
        self._list("message", item, content=listed)
        content = to_content(item.content, parts)
        last = self._open_message()
        if is_answer and last is not None and not {"content", "tool_calls"} & last.keys():
            last["content"] = content
        else:
            self.messages.append({"role": item.role, "content": content})

    def _add_reasoning(self, item: ReasoningInput, place: Place) -> None:
        content = _texts(item.content or (), _REASONING, place.field("content"))
        summary = _texts(item.summary, _SUMMARY, place.field("summary"))
        self._list("reasoning", item, content=item.content or [])
        reasoning = "\n".join(content or summary)
        last = self._open_message()
        if not reasoning:
            return
        if last is None or {"content", "tool_calls"} & last.keys():
            self.messages.append({"role": "assistant", "reasoning": reasoning})
        else:
            last["reasoning"] += "\n" + reasoning

    def _add_call(self, item: FunctionCallInput | CustomCallInput | ShellCallInput) -> None:
        if isinstance(item, ShellCallInput):
            self._list("local_shell_call", item)
            self._name_by_call_id[item.call_id] = name = "local_shell"
            arguments = json.dumps(item.action, ensure_ascii=False)
        else:
            named = {} if item.namespace is None else {"namespace": item.namespace}
            if isinstance(item, CustomCallInput):
                self._list("custom_tool_call", item, **named)
                arguments = to_arguments(item.input)
            else:
                self._list("function_call", item, **named)
                arguments = item.arguments
            self._name_by_call_id[item.call_id] = name = flat_name(item.name, item.namespace)
        self._say_call(item.call_id, {"name": name, "arguments": arguments})

    def _add_output(self, item: FunctionOutputInput, kind: str, place: Place) -> None:
        name = self._name_by_call_id.get(item.call_id, "" if self._is_part else None)
        if name is None:
            raise place.error(f": no call has the call_id {item.call_id[:64]!a} that this answers")
        parts = self._parts(item.output, place.field("output"))
        output = item.output
        if not isinstance(output, str):
            output = [listed_part(part, "input_text") for part in parts]
        self._list(kind, item, output=output)
        # Some templates show the tool's name with its output.
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": item.call_id,
                "name": name,
                "content": to_content(item.output, parts),
            }
        )

    def _add_reference(self, item: ItemReferenceInput, place: Place) -> None:
        found = self._find_item(item.id)
        if found is None:
            raise place.error(f": there is no stored item {item.id[:64]!a}")
        self._num_referred_bytes += len(msgspec.json.encode(found))
        if self._num_referred_bytes > _MAX_REFERRED_BYTES:
            raise place.error(
                f": the items that are referred to take more than {_MAX_REFERRED_BYTES} bytes"
            )
        self.add(found, place)

    def _add_made(
        self, call_id: str, call: McpCallInput | McpApprovalRequestItem, text: str
    ) -> None:
        """Adds a call of a server tool, and its result, for the model."""
        self._say_call(call_id, {"name": call.name, "arguments": call.arguments})
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": call.name, "content": text}
        )

    def _add_approval(self, item: McpApprovalResponseInput, place: Place) -> None:
        """Adds an approved call, to be made; or tells the model that a call was not allowed."""
        request_id = item.approval_request_id
        if self._is_part:
            return
        request = self._request_by_id.get(request_id)
        if request is None:
            found = self._find_item(request_id)
            if found is None or found["type"] != "mcp_approval_request":
                raise place.error(
                    f": there is no mcp_approval_request {request_id[:64]!a}, neither in the input nor "
                    "in a stored response"
                )
            request = msgspec.convert(found, McpApprovalRequestItem)
        if request_id in self._answered_ids:
            raise place.error(f": {request_id[:64]!a} has been answered already")
        self._answered_ids.add(request_id)
        if item.approve:
            call = ApprovedCall(
                request_id, request.server_label, request.name, request.arguments, place
            )
            self.approved.append(call)
        else:
            reason = f": {item.reason}" if item.reason else "."
            self._add_made(request_id, request, f"The user did not allow this call{reason}")

    def _say_call(self, call_id: str, function: Mapping[str, str]) -> None:
        """Adds a call to the open message of the model."""
        last = self._open_message()
        if last is None:
            last = {"role": "assistant"}
            self.messages.append(last)
        call = {"id": call_id, "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)

    def _list(self, kind: str, item: _Owned, **changed: Any) -> None:
        """Adds the item to the list: with an id, and if its type has one, a status."""
        fields = {name: getattr(item, name) for name in _LISTED[kind]}
        listed = {"id": item.id or new_id(_PREFIXES[kind]), "type": kind, **fields, **changed}
        if "status" in listed:
            listed["status"] = listed["status"] or "completed"
        self.items.append(listed)

    def _parts(self, content: str | Sequence[Item], place: Place) -> list[ContentPart]:
        return [part for _, part in read_parts(content, self._types, place)]

    def _open_message(self) -> Message | None:
        """The open message of the model; None if there is none."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" else None


def _texts(parts: Sequence[Item], types: PartTypes[Text], place: Place) -> list[str]:
    return [part.text for _, part in read_parts(parts, types, place)]


def _error_text(error: Item | str) -> str:
    """Error text of a failed call, for the model."""
    if isinstance(error, str):
        return f"Error: {error}"
    return f"Error: {error['message'] if 'message' in error else joined_text(error.get('content'))}"
