"""Adds the allowed values to msgspec's errors about enums and literals, which do not list them."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_REFUSED = re.compile(r"Invalid (?:enum )?value .*(?= - at `\$(?P<path>[^`]*)`$)", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MAX_LISTED = 32


def explain(error: msgspec.DecodeError, kind: Any) -> str:
    """Returns the text of a decoding error of `kind`; for a value outside an enum or literal, with the allowed
    values.
    """
    text = str(error)
    refused = _REFUSED.match(text)
    if refused is None:
        return text
    places = [inspect.type_info(kind)]
    for name, index in _STEP.findall(refused["path"]):
        places = [inner for place in places for inner in _inside(place, name, index)]
    values = dict.fromkeys(value for place in places for value in _values(place))
    if not 0 < len(values) <= _MAX_LISTED:
        return text
    listed = ", ".join(map(repr, values))
    return f"{refused[0]}; allowed: {listed}{text[refused.end() :]}"


def _inside(place: inspect.Type, name: str, index: str) -> Iterator[inspect.Type]:
    """Yields the types that the member `name`, or the item `index`, of a value of this type may have."""
    match place:
        case inspect.UnionType():
            for one in place.types:
                yield from _inside(one, name, index)
        case inspect.Metadata():
            yield from _inside(place.type, name, index)
        case inspect.StructType():
            yield from (field.type for field in place.fields if field.encode_name == name)
            if name == place.tag_field:
                yield inspect.LiteralType((place.tag,))
        case inspect.DictType() if index:
            yield place.value_type
        case inspect.TupleType() if index.isdecimal():
            yield place.item_types[int(index)]
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() if index:
            yield place.item_type


def _values(place: inspect.Type) -> Iterator[Any]:
    match place:
        case inspect.UnionType():
            for one in place.types:
                yield from _values(one)
        case inspect.Metadata():
            yield from _values(place.type)
        case inspect.LiteralType():
            yield from place.values
        case inspect.EnumType():
            yield from (member.value for member in place.cls)
