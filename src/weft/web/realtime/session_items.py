"""The conversation of a realtime session: items in order, in the forms of both APIs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest, NotFound
from weft.web.items.items import read_input

Item = dict[str, Any]
ROOT: Final = "root"
_MAX_ID_CHARS: Final = 64
_PREFIX_BY_TYPE: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}
_SOUND: Final = ("input_audio", "output_audio", "audio")
# Fields of an item in the Responses API, by type; `text` of the API before it is the name of both kinds of text.
_FIELDS: Final = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


class SessionItems:
    """Items of at most `max_items` and `max_chars`, which count the texts of all items."""

    def __init__(self, max_items: int, max_chars: int) -> None:
        self._max_items = max_items
        self._max_chars = max_chars
        self._num_chars = 0
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}

    @property
    def last_id(self) -> str | None:
        """The id of the last item; None for an empty conversation."""
        return next(reversed(self._items), None)

    def get(self, item_id: str) -> Item:
        """The item with this id."""
        found = self._items.get(item_id)
        if found is None:
            raise NotFound(f"there is no item {item_id[:_MAX_ID_CHARS]!a}", "item_id")
        return found

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Adds an item; returns the id of the item before it."""
        if item["id"] in self._items:
            raise BadRequest("item.id", f"there is already an item {item['id']!a}")
        self._check_room(item)
        if after is None or after == self.last_id:
            before = self.last_id
            self._items[item["id"]] = item
            return before
        ids = list(self._items)
        if after != ROOT:
            self.get(after)
        position = 0 if after == ROOT else ids.index(after) + 1
        ids.insert(position, item["id"])
        self._items[item["id"]] = item
        self._items = {item_id: self._items[item_id] for item_id in ids}
        return ids[position - 1] if position else None

    def delete(self, item_id: str) -> None:
        """Removes an item."""
        self._num_chars -= _size(self.get(item_id))
        del self._items[item_id]

    def inputs(self) -> list[Item]:
        """All items as input of the Responses API."""
        return [to_input(item) for item in self._items.values()]

    def _check_room(self, item: Item) -> None:
        if len(self._items) >= self._max_items:
            raise BadRequest(
                "item",
                f"the conversation has {self._max_items} items, which is the maximum; delete one",
            )
        if self._num_chars + _size(item) > self._max_chars:
            raise BadRequest(
                "item",
                f"the conversation has room for {self._max_chars} characters; delete an item",
            )
        self._num_chars += _size(item)


async def to_item(given: Mapping[str, Any], *, takes_media: bool) -> Item:
    """A client's item, checked, with an id."""
    kind = given.get("type")
    if kind not in _FIELDS:
        allowed = ", ".join(_FIELDS)
        raise BadRequest("item.type", f"item.type must be one of {allowed}, got {str(kind)[:40]!a}")
    item_id = given.get("id", None) or new_id(_PREFIX_BY_TYPE[kind])
    if not isinstance(item_id, str) or len(item_id) > _MAX_ID_CHARS:
        raise BadRequest("item.id", f"item.id must be a text of at most {_MAX_ID_CHARS} characters")
    item: Item = {"id": item_id, "object": "realtime.item", "type": kind, "status": "completed"}
    item |= {name: given[name] for name in _FIELDS[kind] if name in given}
    if kind == "function_call" and "call_id" not in item:
        item["call_id"] = new_id("call")
    await check_items([item], "item", takes_media=takes_media)
    return item


async def check_items(items: Sequence[Item], name: str, *, takes_media: bool) -> None:
    """Raises `BadRequest` for items that no prompt can have; errors begin with `name`."""
    for item in items:
        _refuse_sound(item, name)
    # A result may come before its call is known: the whole conversation is checked by each response.
    alone = [to_input(item) for item in items if item["type"] != "function_call_output"]
    try:
        await read_input(alone, find_item=lambda _: None, takes_media=takes_media)
    except BadRequest as error:
        raise BadRequest(name, str(error).replace("input[0]", name), error.value) from error


def to_input(item: Item) -> Item:
    """An item as input of the Responses API."""
    made = {
        "type": item["type"],
        **{name: item[name] for name in _FIELDS[item["type"]] if name in item},
    }
    parts = made.get("content")
    if isinstance(parts, list):
        made["content"] = [_to_part(part, item.get("role")) for part in parts]
    return made


def _to_part(part: Any, role: object) -> Any:
    if isinstance(part, dict) and part.get("type") == "text":
        return {**part, "type": "output_text" if role == "assistant" else "input_text"}
    return part


def _refuse_sound(item: Item, name: str) -> None:
    parts = item.get("content")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") in _SOUND:
            raise BadRequest(
                f"{name}.content", f"{name}.content must be text: sound is not supported"
            )


def _size(item: Item) -> int:
    return sum(len(str(item.get(name, ""))) for name in _FIELDS[item["type"]])
