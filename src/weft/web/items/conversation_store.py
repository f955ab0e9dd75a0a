"""Conversations in the store of a server: their metadata and their items, in order."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from weft.core.errors import BadRequest
from weft.schema.conversations import ConversationObject
from weft.web.http.problem import HttpError
from weft.web.items.item_reader import Item, with_own_id
from weft.web.items.items import before_of
from weft.web.items.recalled import MAX_OPENED_BYTES, Recalled
from weft.web.store.database import Store
from weft.web.store.stored_object import Paging, StoredObject
from weft.web.store.tables import Tables

KIND = "conversation"
ITEM_KIND = f"{KIND}_item"
# Items that other items name by their ids.
_NAMED = frozenset(("mcp_approval_request",))
_MAX_READ = 100_000  # items; the bound in bytes is reached before


class Conversations:
    """The conversations of all tenants in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, tenant: str, conversation: ConversationObject, items: Sequence[Item]
    ) -> None:
        """Stores a new conversation with its first items."""
        record = self._record(tenant, conversation)
        added = self.added(tenant, conversation.id, items)

        def work(tables: Tables) -> None:
            tables.add(record)
            added(tables)

        await self._store.run(work)

    async def get(self, tenant: str, conversation_id: str) -> ConversationObject:
        """Returns a conversation; raises `HttpError` if there is none with this id."""
        return await self._store.run(lambda tables: _found(tables, tenant, conversation_id)[1])

    async def change(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationObject:
        """Replaces the metadata."""

        def work(tables: Tables) -> ConversationObject:
            _, found = _found(tables, tenant, conversation_id)
            changed = msgspec.structs.replace(found, metadata=metadata)
            tables.change_head(self._record(tenant, changed))
            return changed

        return await self._store.run(work)

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Deletes a conversation with its items."""

        def work(tables: Tables) -> None:
            _found(tables, tenant, conversation_id)
            tables.delete(KIND, tenant, conversation_id)

        await self._store.run(work)

    # -- items ------------------------------------------------------------------------------------

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> None:
        """Adds items at the end."""
        added = self.added(tenant, conversation_id, items)

        def work(tables: Tables) -> None:
            _found(tables, tenant, conversation_id)
            added(tables)

        await self._store.run(work)

    def added(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> "Added":
        """Returns the change that adds items at the end of a conversation, if it still exists."""
        now = self._store.clock()
        records = tuple(
            StoredObject(
                kind=ITEM_KIND,
                id=item["id"],
                tenant=tenant,
                collection=conversation_id,
                head=msgspec.json.encode(item),
                created_at=now,
            )
            for item in items
        )
        return Added(tenant, conversation_id, records, now + self._store.options.ttl_s)

    async def page(self, tenant: str, conversation_id: str, paging: Paging) -> list[Item]:
        """Some items of a conversation."""

        def work(tables: Tables) -> list[StoredObject]:
            _found(tables, tenant, conversation_id)
            return tables.page(ITEM_KIND, tenant, paging, conversation_id)

        return [msgspec.json.decode(record.head) for record in await self._store.run(work)]

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item:
        """Returns an item; raises `HttpError` if the conversation has none with this id."""

        def work(tables: Tables) -> StoredObject | None:
            _found(tables, tenant, conversation_id)
            return tables.head(ITEM_KIND, tenant, item_id, conversation_id)

        record = await self._store.run(work)
        if record is None:
            raise _no_item(conversation_id, item_id)
        found: Item = msgspec.json.decode(record.head)
        return found

    async def delete_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> ConversationObject:
        """Deletes an item; returns the conversation."""

        def work(tables: Tables) -> ConversationObject:
            _, conversation = _found(tables, tenant, conversation_id)
            if not tables.delete(ITEM_KIND, tenant, item_id, conversation_id):
                raise _no_item(conversation_id, item_id)
            return conversation

        return await self._store.run(work)

    async def recall(self, tenant: str, conversation_id: str, *, takes_media: bool) -> Recalled:
        """Returns what a response to a conversation continues. Raises `BadRequest` if the conversation is longer than
        one request may open.
        """

        def work(tables: Tables) -> list[StoredObject]:
            _found(tables, tenant, conversation_id)
            if tables.size(ITEM_KIND, tenant, conversation_id) > MAX_OPENED_BYTES:
                raise BadRequest(
                    "conversation",
                    f"conversation: its items take more than {MAX_OPENED_BYTES} bytes; begin another one",
                )
            return tables.page(ITEM_KIND, tenant, Paging(limit=_MAX_READ), conversation_id)

        items: list[Item] = [
            msgspec.json.decode(record.head) for record in await self._store.run(work)
        ]
        messages, labels = await before_of(items, takes_media=takes_media)
        return Recalled(
            before=messages, known_labels=labels, items={item["id"]: item for item in items}
        )

    def _record(self, tenant: str, conversation: ConversationObject) -> StoredObject:
        return StoredObject(
            kind=KIND,
            id=conversation.id,
            tenant=tenant,
            head=msgspec.json.encode(conversation),
            created_at=conversation.created_at,
            expires_at=self._store.clock() + self._store.options.ttl_s,
        )


@dataclass(frozen=True, slots=True)
class Added:
    """The change that adds items to a conversation, and keeps the conversation for its whole time again."""

    tenant: str
    conversation_id: str
    records: tuple[StoredObject, ...]
    expires_at: float

    def __call__(self, tables: Tables) -> None:
        found = tables.head(KIND, self.tenant, self.conversation_id)
        if found is not None:
            tables.change_head(msgspec.structs.replace(found, expires_at=self.expires_at))
            for record in self.records:
                tables.add(record)


def with_own_ids(items: Sequence[Item]) -> list[Item]:
    """The items with ids of this server's: ids of clients may be those of other items."""
    return [item if item["type"] in _NAMED else with_own_id(item) for item in items]


def _found(
    tables: Tables, tenant: str, conversation_id: str
) -> tuple[StoredObject, ConversationObject]:
    record = tables.head(KIND, tenant, conversation_id)
    if record is None:
        raise HttpError(
            404,
            f"ConversationObject with id {conversation_id[:64]!a} not found.",
            code="conversation_not_found",
            parameter="conversation",
        )
    return record, msgspec.json.decode(record.head, type=ConversationObject)


def _no_item(conversation_id: str, item_id: str) -> HttpError:
    return HttpError(
        404,
        f"ConversationObject {conversation_id[:64]!a} has no item {item_id[:64]!a}.",
        code="item_not_found",
        parameter="item_id",
    )
