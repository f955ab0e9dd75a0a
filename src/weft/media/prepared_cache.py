"""`PreparedCache`: prepared items by hash, up to a number of bytes; the least recently used item is dropped first."""

from collections import OrderedDict

from weft.core.values.pictures import PreparedItem

_MAX_NAMES = 10_000


class PreparedCache:
    """LRU cache of prepared items. Used on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[str, PreparedItem] = OrderedDict()
        self._num_bytes = 0
        self._digests: OrderedDict[str, str] = OrderedDict()  # hash of an item by each of its names

    def name(self, name: str, digest: str) -> None:
        """Gives the item with this hash a further name; beyond a maximum number of names the oldest ones are
        dropped.
        """
        self._digests[name] = digest
        self._digests.move_to_end(name)
        if len(self._digests) > _MAX_NAMES:
            self._digests.popitem(last=False)

    def digest_of(self, name: str) -> str | None:
        """Returns the hash of the item with this name; the item itself may have been dropped."""
        return self._digests.get(name)

    def get(self, digest: str) -> PreparedItem | None:
        """Returns the item with this hash and marks it as just used; None if it is not in the cache."""
        item = self._items.get(digest)
        if item is not None:
            self._items.move_to_end(digest)
        return item

    def put(self, item: PreparedItem) -> None:
        """Adds an item unless it exceeds the whole cache; drops least recently used items as needed."""
        if item.hash in self._items or item.num_bytes > self._max_bytes:
            return
        self._items[item.hash] = item
        self._num_bytes += item.num_bytes
        while self._num_bytes > self._max_bytes:
            _, dropped = self._items.popitem(last=False)
            self._num_bytes -= dropped.num_bytes

    def clear(self) -> None:
        """Drops every item."""
        self._items.clear()
        self._digests.clear()
        self._num_bytes = 0
