"""Responses in the store of a server: those that have ended, and those that are made in the background.

Every caller of a tenant who knows an id may read the response, so ids hold 128 random bits, and items are found by ids
of our making only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from weft.core.errors import BadRequest
from weft.schema.response_object import ResponseFailure, ResponseObject
from weft.web.items.item_reader import Item, Message
from weft.web.items.items import RequestInput, as_items, to_messages
from weft.web.items.recalled import MAX_OPENED_BYTES, Recalled
from weft.web.responses.event_log import EventLog, LoggedEvents
from weft.web.store.database import Store
from weft.web.store.stored_object import DROPPED_KIND, StoredObject
from weft.web.store.tables import Tables

KIND = DROPPED_KIND
ITEM_KIND = f"{KIND}_item"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    """Limits on background work."""

    max_background: int = 64
    max_event_bytes: int = 8 * 2**20


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that has ended. `items` and `output` are the items of its input and its own, for requests that refer
    to them. `messages` is the whole conversation up to this response, without instructions, for a response that
    continues the conversation after earlier responses were dropped. `known_labels` are the labels of the MCP servers
    whose tools the conversation has listed. All texts are JSON.
    """

    id: str
    is_background: bool
    response: bytes
    items: bytes
    output: bytes
    messages: bytes
    own_item_ids: tuple[str, ...]
    known_labels: frozenset[str] = frozenset()
    events: LoggedEvents | None = None

    @property
    def log(self) -> EventLog | None:
        """The events of a response that was made in the background and streamed."""
        return None if self.events is None else EventLog.ended(self.events)

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


class AcceptedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a background response that has not ended: all that is needed to begin it again. `items` are the
    listed items of its input. With `seed` the second run samples the same tokens.
    """

    body: bytes
    items: bytes
    seed: int | None
    recalled: Recalled


_stored = msgspec.msgpack.Decoder(StoredResponse)
_accepted = msgspec.msgpack.Decoder(AcceptedRequest)
_plain = msgspec.msgpack.Encoder()


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
        events=None if log is None else log.events,
    )


def without_output(
    response: ResponseObject, status: str, error: ResponseFailure | None
) -> StoredResponse:
    """A background response that ended without an output that could be stored."""
    failed = msgspec.structs.replace(response, status=status, output=[], error=error)
    return StoredResponse(
        id=response.id,
        is_background=response.background,
        response=msgspec.json.encode(failed),
        items=b"[]",
        output=b"[]",
        messages=b"[]",
        own_item_ids=(),
    )


class ResponseStore:
    """The responses of all tenants in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_durable(self) -> bool:
        """True if background responses outlive this process."""
        return self._store.is_durable

    def new_id(self, prefix: str) -> str:
        """Returns the id of a new response."""
        return self._store.new_id(prefix)

    # -- responses that have ended ----------------------------------------------------------------

    async def get(self, tenant: str, response_id: str) -> "StoredResponse | StoredObject | None":
        """The response; if it has not ended, its record, whose head is the response at its last change."""
        found = await self._store.run(lambda tables: tables.get(KIND, tenant, response_id))
        if found is None or found.owner is not None:
            return found
        return _stored.decode(found.content)

    def ended(self, tenant: str, stored: StoredResponse) -> "ResponseEnding":
        """Returns the change that stores a response."""
        now = self._store.clock()
        record = StoredObject(
            kind=KIND,
            id=stored.id,
            tenant=tenant,
            head=stored.response,
            content=_plain.encode(stored),
            created_at=now,
            expires_at=now + self._store.options.ttl_s,
        )
        return ResponseEnding(record, stored.own_item_ids, is_accepted=stored.is_background)

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Deletes a response; returns True if it was stored."""
        return await self._store.run(lambda tables: tables.delete(KIND, tenant, response_id))

    async def find_items(self, tenant: str, item_ids: Iterable[str]) -> dict[str, Item]:
        """Returns the items with these ids that stored responses have. Decodes each response once, and refuses to
        decode more than `MAX_OPENED_BYTES` in all.
        """
        wanted = set(item_ids)
        if not wanted:
            return {}

        def owners(tables: Tables) -> list[bytes]:
            names = [tables.collection_of(ITEM_KIND, tenant, one) for one in sorted(wanted)]
            found, num_bytes = [], 0
            for response_id in dict.fromkeys(names):
                record = response_id and tables.get(KIND, tenant, response_id)
                if record:
                    num_bytes += len(record.content)
                    found.append(record.content)
                if num_bytes > MAX_OPENED_BYTES:
                    raise BadRequest("input", "input refers to items of too many responses")
            return found

        items: dict[str, Item] = {}
        for content in await self._store.run(owners):
            stored = _stored.decode(content)
            ours = wanted.intersection(stored.own_item_ids)
            items |= {key: item for key, item in stored.all_items().items() if key in ours}
        return items

    # -- background responses ---------------------------------------------------------------------

    async def accept(self, tenant: str, response: ResponseObject, request: AcceptedRequest) -> None:
        """Stores a background response before its caller learns of it."""
        record = StoredObject(
            kind=KIND,
            id=response.id,
            tenant=tenant,
            head=msgspec.json.encode(response),
            content=_plain.encode(request),
            created_at=response.created_at,
        )
        await self._store.run(
            lambda tables: tables.add(msgspec.structs.replace(record, owner=tables.me))
        )

    def to_accepted(self, record: StoredObject) -> AcceptedRequest:
        """The request of a record that has not ended."""
        return _accepted.decode(record.content)

    async def claim(self) -> StoredObject | None:
        """Takes a background response that a process left when it ended."""
        return await self._store.run(lambda tables: tables.claim(KIND))

    async def signals(self) -> dict[str, str]:
        """The background responses of this process, with the signals of other processes."""
        return await self._store.run(lambda tables: tables.signals(KIND))

    async def signal(self, record: StoredObject, signal: str) -> bool:
        """Leaves a signal to the process that makes a response."""
        return await self._store.run(lambda tables: tables.signal(record, signal))

    def show(self, tenant: str, response: ResponseObject) -> None:
        """Stores the state of a background response for readers at other processes."""
        record = StoredObject(
            kind=KIND,
            id=response.id,
            tenant=tenant,
            head=msgspec.json.encode(response),
            created_at=response.created_at,
        )
        self._store.post(lambda tables: tables.change_head(record))

    async def run(self, changes: Sequence[Callable[[Tables], object]]) -> None:
        """Makes changes in one transaction."""
        if changes:
            await self._store.run(lambda tables: [change(tables) for change in changes])

    def post(self, changes: Sequence[Callable[[Tables], object]]) -> None:
        """Makes changes later, without waiting for them."""
        if changes:
            self._store.post(lambda tables: [change(tables) for change in changes])


@dataclass(frozen=True, slots=True)
class ResponseEnding:
    """The change that stores a response. One that was accepted in the background is stored only if it still belongs to
    this process: it may have been deleted.
    """

    record: StoredObject
    own_item_ids: tuple[str, ...]
    is_accepted: bool

    def __call__(self, tables: Tables) -> None:
        record = self.record
        if self.is_accepted:
            is_stored = tables.change(record, held_by=tables.me)
        else:
            is_stored = tables.add(record)
        for item_id in self.own_item_ids if is_stored else ():
            self._name(tables, item_id)

    def _name(self, tables: Tables, item_id: str) -> None:
        record = self.record
        tables.add(
            StoredObject(
                kind=ITEM_KIND,
                id=item_id,
                tenant=record.tenant,
                collection=record.id,
                created_at=record.created_at,
            )
        )
