"""Responses that have ended, stored in memory for a while, within bounds.

Responses have no owner, because the store knows no callers: every caller who knows an id may read the response, so ids
hold 128 random bits, and items are found by ids of our making only. A restart forgets everything.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from weft.core.errors import BadRequest
from weft.schema.response_object import ResponseObject
from weft.web.responses.event_log import EventLog
from weft.web.responses.item_reader import Item, Message
from weft.web.responses.items import RequestInput, as_items, to_messages

_MIB = 1024 * 1024
# Maximum bytes of stored responses that one request opens in one turn of the event loop: a little more than a body.
MAX_OPENED_BYTES = 16 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    """Limits on stored responses and on background work."""

    max_responses: int = 10_000
    max_bytes: int = 256 * _MIB
    max_age_s: float = 24 * 3600.0
    max_background: int = 64
    max_event_bytes: int = 8 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response that has ended, stored as JSON, so that its memory can be counted exactly. `output` contains the
    response's own items, for requests that refer to them. `messages` is the whole conversation up to this response,
    without instructions, for a response that continues the conversation after earlier responses were dropped.
    `known_labels` are the labels of the MCP servers whose tools the conversation has listed.
    """

    id: str
    is_background: bool
    response: bytes
    items: bytes
    output: bytes
    messages: bytes
    own_item_ids: tuple[str, ...]
    known_labels: frozenset[str] = frozenset()
    log: EventLog | None
    ended_at: float

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the response."""
        log = 0 if self.log is None else self.log.num_bytes
        return len(self.response) + self.num_item_bytes + len(self.messages) + log

    @property
    def num_item_bytes(self) -> int:
        """Memory that `all_items` reads."""
        return len(self.items) + len(self.output)

    def input_items(self) -> list[Item]:
        """The items of the request's own input."""
        items: list[Item] = msgspec.json.decode(self.items)
        return items

    def conversation(self) -> list[Message]:
        """Returns the conversation up to and including this response's output."""
        messages: list[Message] = msgspec.json.decode(self.messages)
        return messages

    def all_items(self) -> dict[str, Item]:
        """Returns input and output items by id."""
        output: list[Item] = msgspec.json.decode(self.output)
        return {item["id"]: item for item in (*self.input_items(), *output)}


def to_stored(
    response: ResponseObject,
    *,
    conversation: RequestInput,
    before: list[Message],
    known_labels: frozenset[str],
    own_item_ids: tuple[str, ...],
    log: EventLog | None,
) -> StoredResponse:
    """A response that has just ended, ready to be stored."""
    output = as_items(response.output)
    messages = [*before, *conversation.messages, *to_messages(output)]
    return StoredResponse(
        id=response.id,
        is_background=response.background,
        response=msgspec.json.encode(response),
        items=msgspec.json.encode(conversation.items),
        output=msgspec.json.encode(output),
        messages=msgspec.json.encode(messages),
        known_labels=known_labels,
        own_item_ids=(*own_item_ids, *(item.id for item in response.output)),
        log=log,
        ended_at=time.monotonic(),
    )


class ResponseStore:
    """Stored responses. The oldest are dropped if there are too many, if they take too much memory, or by age."""

    def __init__(self, limits: ResponseLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owner_by_item: dict[str, str] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: StoredResponse) -> None:
        """Stores a response, unless it alone exceeds the limit."""
        self._stored[stored.id] = stored
        self._owner_by_item.update(dict.fromkeys(stored.own_item_ids, stored.id))
        self.num_bytes += stored.num_bytes
        self._forget_old()

    def get(self, response_id: str) -> StoredResponse | None:
        """The response, if it is still stored."""
        self._forget_old()
        return self._stored.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Deletes a response; returns True if it was stored."""
        self._forget_old()
        if response_id not in self._stored:
            return False
        self._forget(response_id)
        return True

    def item_finder(self) -> Callable[[str], Item | None]:
        """Returns a function that finds items of stored responses, for one request. The function decodes each
        response once, and refuses to decode more than `MAX_OPENED_BYTES` in all.
        """
        self._forget_old()
        opened: dict[str, dict[str, Item]] = {}
        num_bytes = 0

        def find(item_id: str) -> Item | None:
            nonlocal num_bytes
            owner = self._owner_by_item.get(item_id)
            if owner is None:
                return None
            if owner not in opened:
                num_bytes += self._stored[owner].num_item_bytes
                if num_bytes > MAX_OPENED_BYTES:
                    raise BadRequest("input", "input refers to items of too many responses")
                opened[owner] = self._stored[owner].all_items()
            return opened[owner].get(item_id)

        return find

    def _forget_old(self) -> None:
        limits = self._limits
        oldest_allowed = self._clock() - limits.max_age_s
        while self._stored:
            response_id, stored = next(iter(self._stored.items()))
            is_too_much = (
                len(self._stored) > limits.max_responses or self.num_bytes > limits.max_bytes
            )
            if not is_too_much and stored.ended_at >= oldest_allowed:
                return
            self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        stored = self._stored.pop(response_id)
        self.num_bytes -= stored.num_bytes
        for item_id in stored.own_item_ids:
            if self._owner_by_item.get(item_id) == response_id:
                del self._owner_by_item[item_id]
