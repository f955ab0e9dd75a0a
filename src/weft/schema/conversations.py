"""Bodies and answers of /v1/conversations."""

from typing import Any

import msgspec


class ConversationBody(msgspec.Struct, frozen=True, kw_only=True):
    """A new conversation."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(msgspec.Struct, frozen=True, kw_only=True):
    """New metadata of a conversation, in place of all metadata before."""

    metadata: dict[str, str] | None


class ConversationItemsBody(msgspec.Struct, frozen=True, kw_only=True):
    """Items to add at the end of a conversation."""

    items: list[dict[str, Any]]


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Confirms that a conversation was deleted."""

    id: str
    object: str = "conversation.deleted"
    deleted: bool = True
