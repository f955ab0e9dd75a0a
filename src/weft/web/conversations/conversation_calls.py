"""/v1/conversations: conversations and their items, created, read, changed and deleted."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.schema.conversations import (
    ConversationBody,
    ConversationChange,
    ConversationItemsBody,
    ConversationObject,
    DeletedConversation,
)
from weft.schema.response_object import InputItemList
from weft.web.http.endpoint import Answer, Call, Endpoint, endpoint
from weft.web.inference.paging import is_newest_first, page_limit, page_of
from weft.web.items.conversation_store import Conversations, with_own_ids
from weft.web.items.item_reader import Item
from weft.web.items.items import read_input
from weft.web.responses.unsupported import check_include, check_metadata
from weft.web.store.database import Store
from weft.web.store.stored_object import Paging

_PATH = "/v1/conversations"
_ONE = "/v1/conversations/{conversation_id}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
_MAX_ITEMS = 20
_PAGE, _MAX_PAGE = 20, 100
_EXAMPLE = {"type": "message", "role": "user", "content": "Hello!"}


def conversation_endpoints(store: Store, conversations: Conversations) -> tuple[Endpoint, ...]:
    """The endpoints of one server."""
    calls = ConversationCalls(store, conversations)
    alone: dict[str, Any] = {"uses_model": False}
    many: dict[str, Any] = {"repeatable": ("include", "include[]")}
    return (
        endpoint(
            f"POST {_PATH}",
            body=ConversationBody,
            answer=ConversationObject,
            example={"items": [_EXAMPLE], "metadata": {"topic": "demo"}},
            **alone,
        )(calls.create),
        endpoint(f"GET {_ONE}", answer=ConversationObject, **alone)(calls.retrieve),
        endpoint(
            f"POST {_ONE}",
            body=ConversationChange,
            answer=ConversationObject,
            example={"metadata": {"topic": "demo"}},
            **alone,
        )(calls.update),
        endpoint(f"DELETE {_ONE}", answer=DeletedConversation, **alone)(calls.delete),
        endpoint(
            f"POST {_ITEMS}",
            body=ConversationItemsBody,
            answer=InputItemList,
            example={"items": [_EXAMPLE]},
            **alone,
            **many,
        )(calls.add_items),
        endpoint(f"GET {_ITEMS}", answer=InputItemList, **alone, **many)(calls.list_items),
        endpoint(f"GET {_ITEM}", answer=dict[str, Any], **alone, **many)(calls.item),
        endpoint(f"DELETE {_ITEM}", answer=ConversationObject, **alone)(calls.delete_item),
    )


class ConversationCalls:
    """The handlers of /v1/conversations."""

    def __init__(self, store: Store, conversations: Conversations) -> None:
        self._store = store
        self._conversations = conversations

    async def create(self, call: Call) -> Answer:
        """Create a conversation, with its first items"""
        body: ConversationBody = call.body
        check_metadata(body.metadata or {})
        items = await _read_items(body.items or [])
        made = ConversationObject(
            id=self._store.new_id("conv"),
            created_at=int(self._store.clock()),
            metadata=body.metadata or {},
        )
        await self._conversations.create(call.tenant_name, made, items)
        return made

    async def retrieve(self, call: Call) -> Answer:
        """Get a conversation without its items"""
        return await self._conversations.get(call.tenant_name, _id(call))

    async def update(self, call: Call) -> Answer:
        """Replace the metadata of a conversation"""
        body: ConversationChange = call.body
        check_metadata(body.metadata or {})
        return await self._conversations.change(call.tenant_name, _id(call), body.metadata or {})

    async def delete(self, call: Call) -> Answer:
        """Delete a conversation with its items"""
        await self._conversations.delete(call.tenant_name, _id(call))
        return DeletedConversation(id=_id(call))

    async def add_items(self, call: Call) -> Answer:
        """Add items at the end of a conversation"""
        body: ConversationItemsBody = call.body
        _check_includes(call.query)
        if not body.items:
            raise BadRequest("items", f"items must hold 1 to {_MAX_ITEMS} items, got 0")
        items = await _read_items(body.items)
        await self._conversations.add_items(call.tenant_name, _id(call), items)
        return InputItemList(**page_of(items, len(items), itemgetter("id")))

    async def list_items(self, call: Call) -> Answer:
        """List the items of a conversation, a page at a time

        The last first, unless `order` says otherwise.
        """
        _check_includes(call.query)
        limit = page_limit(call.query, default=_PAGE, most=_MAX_PAGE)
        paging = Paging(
            limit=limit + 1,  # one more, to see whether there is another page
            newest_first=is_newest_first(call.query),
            after=call.query.get("after"),
        )
        items = await self._conversations.page(call.tenant_name, _id(call), paging)
        return InputItemList(**page_of(items, limit, itemgetter("id")))

    async def item(self, call: Call) -> Answer:
        """Get an item of a conversation"""
        _check_includes(call.query)
        found = await self._conversations.item(call.tenant_name, _id(call), _item_id(call))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def delete_item(self, call: Call) -> Answer:
        """Delete an item of a conversation, and answer with the conversation"""
        return await self._conversations.delete_item(call.tenant_name, _id(call), _item_id(call))


async def _read_items(given: list[Item]) -> list[Item]:
    """The checked items with their new ids."""
    if len(given) > _MAX_ITEMS:
        raise BadRequest("items", f"items takes at most {_MAX_ITEMS} items, got {len(given)}")
    # Whether a model takes pictures is checked when one reads the conversation.
    read = await read_input(
        given, find_item=lambda _: None, takes_media=True, is_part=True, name="items"
    )
    return with_own_ids(read.items)


def _check_includes(query: Mapping[str, str]) -> None:
    """Checks `include`. A stored item has the parts it was made with; requesting others changes nothing."""
    names = [query[name].split(",") for name in ("include", "include[]") if name in query]
    check_include([name for group in names for name in group])


def _id(call: Call) -> str:
    return call.path_parameters["conversation_id"]


def _item_id(call: Call) -> str:
    return call.path_parameters["item_id"]
