"""Checks whether branches of a JSON schema exclude each other: by type, by a constant, or by required properties."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

_MAX_REFERENCES = 16
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})


def are_disjoint(branches: Sequence[Any], root: Mapping[str, Any]) -> bool:
    """True if it is certain that no value meets two of the branches."""
    schemas = [resolve(branch, root) for branch in branches]
    return all(_excludes(one, other, root) for one, other in combinations(schemas, 2))


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns the target of a reference inside the document; a schema without such a reference is returned as it is."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        found: Any = root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return schema
            found = found[name]
        schema = found
    return schema


def _excludes(one: Any, other: Any, root: Mapping[str, Any]) -> bool:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is False or other is False
    if not _types(one) & _types(other):
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not values & others
    if _types(one) & _types(other) != {"object"}:
        return False
    return (
        _differs_in_constant(one, other, root)
        or _lacks_needed(one, other)
        or _lacks_needed(other, one)
    )


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = schema.get("type")
    if kinds is None:
        return _TYPES
    named = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(named, list):
        return _TYPES
    return frozenset("number" if kind == "integer" else str(kind) for kind in named)


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the listed values (`const` or `enum`) as texts, with 1 and 1.0 alike; None if none are listed."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(map(_shown, listed)) if isinstance(listed, list) else None


def _shown(value: object) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return repr(int(value) if is_whole and isinstance(value, float) else value)


def _differs_in_constant(
    one: Mapping[str, Any], other: Mapping[str, Any], root: Mapping[str, Any]
) -> bool:
    """True if a property that both schemas require has different constants in them."""
    for name in _required(one) & _required(other):
        inner = [resolve(_properties(schema).get(name), root) for schema in (one, other)]
        values = [_values(schema) if isinstance(schema, Mapping) else None for schema in inner]
        if values[0] is not None and values[1] is not None and not values[0] & values[1]:
            return True
    return False


def _lacks_needed(closed: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if `closed` forbids a property that `other` requires."""
    is_closed = closed.get("additionalProperties") is False and not closed.get("patternProperties")
    return is_closed and bool(_required(other) - _properties(closed).keys())


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
