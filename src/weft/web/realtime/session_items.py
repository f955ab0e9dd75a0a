"""The conversation of a realtime session: items in order, in the forms of both APIs."""

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest, NotFound
from weft.core.values.media import Modality
from weft.web.items.items import read_input
from weft.web.realtime.sounds import (
    SoundAccount,
    check_samples,
    num_samples_bytes,
    to_samples,
    wav_base64,
)

Item = dict[str, Any]
Takes: TypeAlias = Collection[Modality]  # what a model takes beside text
ROOT: Final = "root"
_MAX_ID_CHARS: Final = 64
_PREFIX_BY_TYPE: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}
_SPOKEN: Final = ("output_audio", "audio")
# Fields of an item in the Responses API, by type; `text` of the API before it is the name of both kinds of text.
_FIELDS: Final = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


class SessionItems:
    """Items of at most `max_items` and `max_chars`, which count the texts of all items; `account` counts sounds."""

    def __init__(self, max_items: int, max_chars: int, account: SoundAccount) -> None:
        self._account = account
        self._max_items = max_items
        self._max_chars = max_chars
        self._num_chars = 0
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}

    @property
    def last_id(self) -> str | None:
        """The id of the last item; None for an empty conversation."""
        return next(reversed(self._items), None)

    def __len__(self) -> int:
        return len(self._items)

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
        if after not in (None, ROOT):
            self.get(after)
        self._check_room(item)
        if after is None or after == self.last_id:
            before = self.last_id
            self._items[item["id"]] = item
            return before
        ids = list(self._items)
        position = 0 if after == ROOT else ids.index(after) + 1
        ids.insert(position, item["id"])
        self._items[item["id"]] = item
        self._items = {item_id: self._items[item_id] for item_id in ids}
        return ids[position - 1] if position else None

    def delete(self, item_id: str) -> None:
        """Removes an item."""
        item = self.get(item_id)
        self._num_chars -= _size(item)
        self._account.remove(_num_sound_bytes(item))
        del self._items[item_id]

    def all(self) -> list[Item]:
        """All items, in order."""
        return list(self._items.values())

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
        self._account.add(_num_sound_bytes(item), "item")
        self._num_chars += _size(item)


def item_of_sound(samples: bytes) -> Item:
    """A message of the user with a sound."""
    part = {
        "type": "input_audio",
        "audio": base64.b64encode(samples).decode(),
        "transcript": None,
    }
    return {
        "id": new_id(_PREFIX_BY_TYPE["message"]),
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [part],
    }


def has_sound(item: Item) -> bool:
    """True if a checked item has a sound."""
    return _num_sound_bytes(item) > 0


def has_media(item: Item) -> bool:
    """True if a checked item has a sound or a picture."""
    parts = item.get("content")
    kinds = [part.get("type") for part in parts] if isinstance(parts, list) else []
    return "input_audio" in kinds or "input_image" in kinds


def without_sounds(item: Item) -> Item:
    """The item as events show it: with sounds, but not their samples."""
    if not has_sound(item):
        return item
    content = [
        {name: value for name, value in part.items() if name != "audio"}
        if _is_sound(part)
        else part
        for part in item["content"]
    ]
    return {**item, "content": content}


async def to_item(given: Mapping[str, Any], *, takes: Takes) -> Item:
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
    await check_items([item], "item", takes=takes)
    return item


async def check_items(items: Sequence[Item], name: str, *, takes: Takes) -> None:
    """Raises `BadRequest` for items that no prompt can have; errors begin with `name`."""
    for item in items:
        _check_sounds(item, name, takes=takes)
    # A result may come before its call is known: the whole conversation is checked by each response.
    alone = [to_input(item) for item in items if item["type"] != "function_call_output"]
    try:
        await read_input(alone, find_item=lambda _: None, takes_media=bool(takes))
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
    if _is_sound(part):
        sound = {"data": wav_base64(part["audio"]), "format": "wav"}
        return {"type": "input_audio", "input_audio": sound}
    if isinstance(part, dict) and part.get("type") == "text":
        return {**part, "type": "output_text" if role == "assistant" else "input_text"}
    return part


def _is_sound(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_audio"


def _check_sounds(item: Item, name: str, *, takes: Takes) -> None:
    parts = item.get("content")
    place = f"{name}.content"
    for part in parts if isinstance(parts, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _SPOKEN:
            raise BadRequest(place, f"{place} must not be {kind}: this server does not speak")
        if kind == "input_image" and "image" not in takes:
            raise BadRequest(
                place, f"{place} must not be input_image: this model takes no pictures"
            )
        if kind == "input_audio":
            _check_sound(part, place, takes=takes)
            if item.get("role") != "user":
                raise BadRequest(place, f"{place} may be input_audio in messages of the user alone")


def _check_sound(part: Mapping[str, Any], place: str, *, takes: Takes) -> None:
    if "audio" not in takes:
        raise BadRequest(place, f"{place} must not be input_audio: this model takes no sounds")
    audio = part.get("audio")
    if not isinstance(audio, str):
        raise BadRequest(place, f"{place}: input_audio needs audio, samples in base64")
    check_samples(len(to_samples(audio, place)), place)


def _num_sound_bytes(item: Item) -> int:
    """Number of bytes of the samples of a checked item."""
    parts = item.get("content")
    sounds = filter(_is_sound, parts) if isinstance(parts, list) else ()
    return sum(num_samples_bytes(part["audio"]) for part in sounds)


def _size(item: Item) -> int:
    shown = without_sounds(item)
    return sum(len(str(shown.get(name, ""))) for name in _FIELDS[item["type"]])
