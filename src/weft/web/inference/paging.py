"""Query parameters that several endpoints have, checked."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from weft.core.errors import BadRequest

_MAX_DIGITS = 9


def page_limit(query: Mapping[str, str], *, default: int, most: int) -> int:
    """The number of objects in a page."""
    limit = whole_number(query, "limit", default=default)
    if not 1 <= limit <= most:
        raise BadRequest("limit", f"limit must be 1 to {most}, got {limit}", limit)
    return limit


def is_newest_first(query: Mapping[str, str]) -> bool:
    """The order of a list, which is newest first unless `order` says otherwise."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order", f'order must be "asc" or "desc", got {order[:40]!a}')
    return order == "desc"


def page_of(
    found: Sequence[Any], limit: int, id_of: Callable[[Any], str] = attrgetter("id")
) -> dict[str, Any]:
    """Returns the fields of a list's answer for the objects that were found, of which there is one above `limit` if
    there is another page.
    """
    data = list(found[:limit])
    return {
        "data": data,
        "first_id": id_of(data[0]) if data else None,
        "last_id": id_of(data[-1]) if data else None,
        "has_more": len(found) > limit,
    }


def whole_number(query: Mapping[str, str], name: str, *, default: int) -> int:
    """The number in a parameter."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BadRequest(name, f"{name} must be a whole number from 0, got {text[:40]!a}")
    return int(text)
