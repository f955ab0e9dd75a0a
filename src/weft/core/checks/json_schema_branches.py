"""Checks if the branches of a JSON schema exclude each other: by type, by a constant, or by required properties."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

_MAX_REFERENCES = 16
# Maximum number of branches, constants and comparisons of constants in a whole schema. They take about 10 ms.
_MAX_WORK = 2**15
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})
_OBJECT = frozenset({"object"})


class Branches:
    """Compares the branches of one schema, within a limit for the work of all comparisons together."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._read: dict[
            int, tuple[Any, _Branch]
        ] = {}  # by id() of the schema; the tuple holds the schema, so that its id is not reused
        self._work = 0

    def are_disjoint(self, branches: Sequence[Any]) -> bool:
        """True if it is certain that no value matches two of the branches."""
        facts = [self._facts_of(resolve(branch, self._root)) for branch in branches]
        self._work += sum(1 + len(branch.constants) for branch in facts)
        if self._work > _MAX_WORK:
            return False
        if _list_apart(facts) or _share_discriminator(facts):
            return True
        self._work += sum(i * (1 + len(branch.constants)) for i, branch in enumerate(facts))
        return self._work <= _MAX_WORK and all(
            _excludes(one, other) for one, other in combinations(facts, 2)
        )

    def _facts_of(self, schema: Any) -> "_Branch":
        if id(schema) not in self._read:
            self._read[id(schema)] = schema, _read(schema, self._root)
        return self._read[id(schema)][1]


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


@dataclass(frozen=True, slots=True)
class _Branch:
    """The facts about a branch by which it can exclude other branches."""

    types: frozenset[str]
    values: frozenset[str] | None = None  # None: any value of the types
    required: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None  # names of properties; None: any name
    constants: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of required properties


def _read(schema: Any, root: Mapping[str, Any]) -> _Branch:
    if not isinstance(schema, Mapping):
        return _Branch(frozenset() if schema is False else _TYPES)
    required, properties = _required(schema), _properties(schema)
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    inner = {name: resolve(properties.get(name), root) for name in required}
    listed = {name: _values(rule) for name, rule in inner.items() if isinstance(rule, Mapping)}
    return _Branch(
        types=_types(schema),
        values=_values(schema),
        required=required,
        allowed=frozenset(properties) if is_closed else None,
        constants={name: values for name, values in listed.items() if values is not None},
    )


def _list_apart(branches: Sequence[_Branch]) -> bool:
    """True if each branch lists its allowed values, and no value is in two lists."""
    values = [branch.values for branch in branches if branch.values is not None]
    return len(values) == len(branches) and _are_apart(values)


def _share_discriminator(branches: Sequence[_Branch]) -> bool:
    """True if all branches are objects that require one property with different constants."""
    if any(branch.types != _OBJECT for branch in branches):
        return False
    names = Counter(name for branch in branches for name in branch.constants)
    return any(
        _are_apart([branch.constants[name] for branch in branches])
        for name, num in names.items()
        if num == len(branches)
    )


def _are_apart(sets: Sequence[frozenset[str]]) -> bool:
    return sum(map(len, sets)) == len(frozenset().union(*sets))


def _excludes(one: _Branch, other: _Branch) -> bool:
    common = one.types & other.types
    if not common:
        return True
    if one.values is not None and other.values is not None:
        return one.values.isdisjoint(other.values)
    return common == _OBJECT and (
        _differs_in_constant(one, other) or _lacks_needed(one, other) or _lacks_needed(other, one)
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
    """Returns the values in `const` or `enum` as JSON texts, with 1 and 1.0 alike; None if none are listed."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(map(_shown, listed)) if isinstance(listed, list) else None


def _shown(value: object) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return repr(int(value) if is_whole and isinstance(value, float) else value)


def _differs_in_constant(one: _Branch, other: _Branch) -> bool:
    """True if both branches require a property and allow different constants for it."""
    return any(
        name in other.constants and values.isdisjoint(other.constants[name])
        for name, values in one.constants.items()
    )


def _lacks_needed(closed: _Branch, other: _Branch) -> bool:
    """True if `closed` allows no additional properties and so forbids a property that `other` requires."""
    return closed.allowed is not None and not other.required <= closed.allowed


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    if not isinstance(names, list):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
