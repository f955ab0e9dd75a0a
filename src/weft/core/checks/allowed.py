"""Adds the allowed values to msgspec's errors about enums and literals: msgspec's own text does not list them."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_VALUE = re.compile(r"Invalid (?:enum )?value ")
_REFUSED = re.compile(r"Invalid (?:enum )?value .*(?= - at `\$(?P<path>[^`]*)`$)", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MAX_LISTED = 32


def is_refused_value(error: msgspec.DecodeError) -> bool:
    """True for an error about a value outside an enum, a literal or the tags of a union; its text repeats the value."""
    return _VALUE.match(str(error)) is not None


def explain(error: msgspec.DecodeError, kind: Any) -> str:
    """Returns the text of an error that msgspec raised while it decoded a value of type `kind`.

    If the value is outside an enum or a literal, the allowed values are appended.
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
    """Yields the possible types of the member `name`, or of the item `index`, inside a value of type `place`."""
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
