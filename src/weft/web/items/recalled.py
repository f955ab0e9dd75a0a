"""`Recalled`: the stored objects that a request continues."""

import msgspec

from weft.web.items.item_reader import Item, Message

# Maximum bytes of stored objects that one request opens in one turn of the event loop: a little more than a body.
MAX_OPENED_BYTES = 16 * 2**20


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """The stored objects that a request continues: the messages before its input, the MCP servers whose tools were
    listed in them, and the items that its input refers to, by id.
    """

    before: list[Message] = []
    known_labels: frozenset[str] = frozenset()
    items: dict[str, Item] = {}
