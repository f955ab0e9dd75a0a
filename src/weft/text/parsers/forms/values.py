"""Converts the text of a parameter to JSON of the type that its schema allows."""

import json
from collections.abc import Mapping

from weft.text.parsers.forms.literals import json_string, to_json
from weft.text.parsers.streams import Malformed

ANY_KIND = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
TEXT_KIND = frozenset({"string"})
_MAX_SCHEMA_DEPTH = 8
_KINDS_BY_START = {
    "{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null",
}  # fmt: skip
_SPELLINGS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def kinds_of(schema: object, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; all of them if it does not restrict the type."""
    if not isinstance(schema, Mapping) or depth == _MAX_SCHEMA_DEPTH:
        return ANY_KIND
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & ANY_KIND or ANY_KIND
    if isinstance(declared, list):
        return frozenset(kind for kind in declared if isinstance(kind, str)) & ANY_KIND or ANY_KIND
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            return frozenset().union(*(kinds_of(choice, depth + 1) for choice in choices))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset().union(*map(_kinds_of_value, values))
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY_KIND


def is_text(kinds: frozenset[str]) -> bool:
    """True if every text is a valid value as it is."""
    return kinds == TEXT_KIND


def typed_json(text: str, kinds: frozenset[str]) -> str:
    """`text` as JSON of one of `kinds`; as a string if it has none of these types."""
    value = text.strip()
    value = _SPELLINGS.get(value.lower(), value)
    if value[:1] in ("{", "[") and not _is_json(value):
        try:
            value = to_json(value)
        except Malformed:
            return json_string(text)
    elif not _is_json(value):
        return json_string(text)
    # Quoted text: if the type is string, the quotes belong to the text; without a type, it is JSON.
    is_meant = not value.startswith('"') or kinds == ANY_KIND
    return value if is_meant and _kinds_of_json(value) & kinds else json_string(text)


def _is_json(text: str) -> bool:
    try:
        # Numbers are kept as text: they are passed on as written, and huge ones cost nothing.
        json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _kinds_of_json(text: str) -> frozenset[str]:
    known = _KINDS_BY_START.get(text[0])
    if known is not None:
        return frozenset({known})
    is_whole = text.removeprefix("-").isdecimal()
    return frozenset({"integer", "number"}) if is_whole else frozenset({"number"})


def _kinds_of_value(value: object) -> frozenset[str]:
    return _kinds_of_json(json.dumps(value, default=str))
