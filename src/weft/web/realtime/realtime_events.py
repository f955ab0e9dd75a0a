"""Writes the events of a response in the words of the realtime API."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from weft.core.checks.object_ids import new_id
from weft.schema.response_events import StreamEvent
from weft.schema.response_object import FunctionCallItem, OutputItem, OutputMessage, ResponseObject
from weft.web.realtime.session_items import Item, SessionItems

Event = dict[str, Any]

# Events that both APIs have, with the fields that they share.
_WITHIN: Final = ("item_id", "output_index", "content_index")
_FIELDS_BY_TYPE: Final = {
    "response.output_item.added": ("output_index",),
    "response.output_item.done": ("output_index",),
    "response.content_part.added": _WITHIN,
    "response.content_part.done": _WITHIN,
    "response.output_text.delta": (*_WITHIN, "delta"),
    "response.output_text.done": (*_WITHIN, "text"),
    "response.function_call_arguments.delta": ("item_id", "output_index", "delta"),
    "response.function_call_arguments.done": ("item_id", "output_index", "arguments"),
}
_REASONS: Final = {"max_output_tokens": "max_output_tokens", "content_filter": "content_filter"}


def to_event(kind: str, **fields: Any) -> Event:
    """An event of the server."""
    return {"type": kind, "event_id": new_id("event"), **fields}


def encode(event: Event) -> bytes:
    """The message of an event."""
    return msgspec.json.encode(event)


class ResponseEvents:
    """Converts the events of one response. Reasoning is left out, and items are counted without it."""

    def __init__(
        self,
        conversation: SessionItems | None,
        conversation_id: str,
        settings: Event,
        *,
        has_sounds: bool,
    ) -> None:
        self._conversation = conversation
        self._has_sounds = has_sounds
        self._conversation_id = conversation_id
        self._settings = settings
        self._index_by_index: dict[int, int] = {}
        self._call_by_id: dict[str, FunctionCallItem] = {}

    def created(self, response: ResponseObject) -> Event:
        """The first event."""
        return to_event("response.created", response=self._response(response, "in_progress"))

    def events(self, event: StreamEvent) -> Iterator[Event]:
        """The realtime events of an event of the Responses API; none for those that it does not have."""
        given = msgspec.to_builtins(event)
        kind: str = given["type"]
        fields = _FIELDS_BY_TYPE.get(kind)
        item: OutputItem | None = getattr(event, "item", None)
        if kind == "response.output_item.added" and item is not None and is_shown(item):
            self._index_by_index[given["output_index"]] = len(self._index_by_index)
        if fields is None or given["output_index"] not in self._index_by_index:
            return
        made = {name: given[name] for name in fields}
        made["output_index"] = self._index_by_index[given["output_index"]]
        if "part" in given:
            made["part"] = {"type": "text", "text": given["part"]["text"]}
        if kind.startswith("response.function_call_arguments"):
            made |= self._call_fields(kind, given["item_id"])
        if item is None:
            yield to_event(kind, **made)
            return
        if isinstance(item, FunctionCallItem):
            self._call_by_id[item.id] = item
        yield to_event(kind, **made, item=to_item(item))
        if self._conversation is not None:
            yield from self._item_events(kind, to_item(item), self._conversation)

    def _call_fields(self, kind: str, item_id: str) -> Event:
        call = self._call_by_id[item_id]
        name = {"name": call.name} if kind.endswith("done") else {}
        return {"call_id": call.call_id, **name}

    def _item_events(self, kind: str, item: Item, conversation: SessionItems) -> Iterator[Event]:
        verb = kind.rpartition(".")[2]
        yield to_event(
            f"conversation.item.{verb}", previous_item_id=conversation.last_id, item=item
        )
        if verb == "done":
            conversation.add(item)

    def done(self, response: ResponseObject, status: str) -> Event:
        """The last event, with the output and its usage."""
        return to_event("response.done", response=self._response(response, status))

    def _response(self, response: ResponseObject, status: str) -> Event:
        output = [to_item(item) for item in response.output if is_shown(item)]
        return {
            "id": response.id,
            "object": "realtime.response",
            "status": status,
            "status_details": _details(response, status),
            "output": output,
            "conversation_id": None if self._conversation is None else self._conversation_id,
            "output_modalities": ["text"],
            "metadata": response.metadata or None,
            "usage": _usage(response, has_sounds=self._has_sounds),
            **self._settings,
        }


def is_shown(item: OutputItem) -> bool:
    """True for messages and calls; reasoning is not shown."""
    return isinstance(item, OutputMessage | FunctionCallItem)


def to_item(item: OutputItem) -> Item:
    """An item of a response's output as an item of a conversation."""
    made: Item = {"id": "", "object": "realtime.item", "type": "", "status": ""}
    made |= msgspec.to_builtins(item)
    if isinstance(item, OutputMessage):
        made["content"] = [{"type": "output_text", "text": part.text} for part in item.content]
    made.pop("namespace", None)
    return made


def _details(response: ResponseObject, status: str) -> Event | None:
    if status in ("in_progress", "completed"):
        return None
    details: Event = {"type": status}
    if status == "cancelled":
        details["reason"] = "client_cancelled"
    if response.incomplete_details is not None:
        details["reason"] = _REASONS.get(response.incomplete_details.reason)
    if response.error is not None:
        details["error"] = {
            "type": "server_error",
            "code": response.error.code,
            "message": response.error.message,
        }
    return details


def _usage(response: ResponseObject, *, has_sounds: bool) -> Event | None:
    """The tokens of a response. How many of an input with sounds are those of text is not known, and left out."""
    usage = response.usage
    if usage is None:
        return None
    by_kind = {} if has_sounds else {"text_tokens": usage.input_tokens, "audio_tokens": 0}
    return {
        "total_tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {
            **by_kind,
            "cached_tokens": usage.input_tokens_details.cached_tokens,
        },
        "output_token_details": {"text_tokens": usage.output_tokens, "audio_tokens": 0},
    }
