"""Rewrites JSON schemas into a form that the grammar library can enforce, and names the rules that it cannot enforce.

A rule with an equivalent that the library supports is rewritten without loss. A rule without one is left out and named:
an answer may break it. The library enforces or refuses all other rules.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeGuard

from weft.core.checks.json_schema_branches import Branches, resolve
from weft.core.checks.json_schema_patterns import without_assertions

# Upper bound that every answer meets: no answer has more items or characters.
MAX_COUNT = 2**20
_FLOAT64_MAX = 1.7976931348623157e308
# The library computes bounds of integers in 64 bits, and those of other numbers digit by digit.
_MIN_INTEGER = -(2**63) + 2**10
_MAX_NUMBER = 10**17
_MIN_NUMBER = 1e-30
_MAX_DECIMALS = 9

_DATA = frozenset({"const", "default"})
_SCHEMAS = ("items", "additionalProperties", "additionalItems")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_INNER = frozenset((*_SCHEMAS, *_LISTS, *_MAPS))
LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_NOTES = frozenset({"title", "description", "$comment", "default", "examples", "type"})
FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri unknown".split()
)

# Keywords that the library lacks, each with the values that have no effect.
UNHELD: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "contains": (),
        "minContains": (),
        "maxContains": (),
        "dependencies": ({},),
        "dependentRequired": ({},),
        "dependentSchemas": ({},),
        "not": (False,),
        "if": (),
        "then": (),
        "else": (),
        "unevaluatedItems": (True, {}),
        "unevaluatedProperties": (True, {}),
        "uniqueItems": (False,),
    }
)


@dataclass(frozen=True, slots=True)
class HeldSchema:
    """A schema that the grammar library can enforce, and the places of the rules of the given schema that were left
    out.
    """

    schema: dict[str, Any]
    unheld: tuple[str, ...]


def held(schema: Mapping[str, Any]) -> HeldSchema:
    """Returns the schema in a form that the library can enforce."""
    reader = _Reader(schema)
    whole = dict(reader.read(schema, ""))
    return HeldSchema(whole, tuple(sorted(reader.unheld)))


def without_nulls(schema: Any) -> Any:
    """Returns the schema without keywords whose value is null: programs in Go encode absent slices and maps as null."""
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value for key, value in schema.items() if value is not None or key in _DATA}
    return _inside(made, lambda one, _place: without_nulls(one), "")


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.unheld: list[str] = []
        self._branches = Branches(root)

    def read(self, schema: Any, place: str) -> Any:
        """Returns one schema rewritten, together with all schemas nested in it."""
        if not isinstance(schema, Mapping) or not schema:
            return schema
        made = {key: value for key, value in schema.items() if value is not None or key in _DATA}
        if "$schema" in made and "json-schema.org/" not in str(made["$schema"]):
            del made["$schema"]  # only the dialects of json-schema.org are known
        for rewrite in {_REWRITES[key] for key in made.keys() & _REWRITES.keys()}:
            rewrite(self, made, place)
        return _inside(made, self.read, place)

    def leave_out(self, made: dict[str, Any], key: str, place: str) -> None:
        """Removes a rule and records it as not enforced."""
        del made[key]
        self.unheld.append(f"{place}/{key}")

    def read_keywords(self, made: dict[str, Any], place: str) -> None:
        """Removes keywords that the library does not have."""
        if "if" in made and not made.keys() & {"then", "else"}:
            del made["if"]
        if "if" not in made:
            made.pop("then", None)
            made.pop("else", None)
        for key in [key for key in made if key in UNHELD]:
            if any(made[key] == value and type(made[key]) is type(value) for value in UNHELD[key]):
                del made[key]
            else:
                self.leave_out(made, key, place)

    def read_names(self, made: dict[str, Any], place: str) -> None:
        """Rewrites `propertyNames` that has an enumeration or a pattern into a pattern for all properties.

        Names are strings, so a `propertyNames` that allows no strings allows only the empty object.
        """
        if "propertyNames" not in made:
            return
        rule = resolve(made["propertyNames"], self._root)
        if rule is True or (_takes_texts(rule) and rule.keys() <= _NOTES):
            del made["propertyNames"]  # the rule allows all strings, and names are always strings
            return
        names = _pattern_of(rule)
        is_empty = rule is False or (isinstance(rule, Mapping) and not _takes_texts(rule))
        if (names is None and not is_empty) or made.keys() & {"properties", "patternProperties"}:
            self.leave_out(made, "propertyNames", place)
            return
        del made["propertyNames"]
        if is_empty:
            made["additionalProperties"] = False
            return
        made["patternProperties"] = {names: made.get("additionalProperties", True)}
        made["additionalProperties"] = False

    def read_one_of(self, made: dict[str, Any], place: str) -> None:
        """Rewrites `oneOf` as `anyOf`, which is equivalent if no value can match two branches; otherwise records the
        place.
        """
        branches = made.get("oneOf")
        if not isinstance(branches, list):
            return
        del made["oneOf"]
        made.pop("discriminator", None)
        if not self._branches.are_disjoint(branches):
            self.unheld.append(f"{place}/oneOf")
        if "anyOf" not in made:
            made["anyOf"] = branches
        elif isinstance(every := made.get("allOf", []), list):
            made["allOf"] = [*every, {"anyOf": branches}]

    def read_counts(self, made: dict[str, Any], _place: str) -> None:
        """Rewrites counts such as 5.0 as integers, and removes counts that every answer satisfies."""
        for key in made.keys() & {*LEAST, *_MOST}:
            count = made[key]
            if isinstance(count, float) and count.is_integer():
                made[key] = count = int(count)
            if type(count) is int and (count < 0 if key in LEAST else count > MAX_COUNT):
                del made[key]

    def read_bounds(self, made: dict[str, Any], place: str) -> None:
        """Removes bounds and factors of numbers that the library cannot compute, and bounds that every number
        satisfies.
        """
        kinds = made.get("type")
        is_integer = "integer" in _listed(kinds) and "number" not in _listed(kinds)
        for key in [key for key in BOUNDS if type(made.get(key)) in (int, float)]:
            bound = made[key]
            is_outward = bound > 0 if key.endswith("aximum") else bound < 0
            if is_outward and abs(bound) >= _FLOAT64_MAX:
                del made[key]  # every number that fits a float64 is within the bound
            elif is_integer and -(2**63) <= bound < _MIN_INTEGER:
                made[key] = _MIN_INTEGER
            elif not (_is_integer_bound(bound) if is_integer else _is_number_bound(bound)):
                self.leave_out(made, key, place)
        factor = made.get("multipleOf")
        if type(factor) in (int, float) and not _is_factor(Decimal(repr(factor))):
            self.leave_out(made, "multipleOf", place)

    def read_texts(self, made: dict[str, Any], place: str) -> None:
        """Removes formats of strings that the library does not know, and lookarounds in patterns."""
        kinds = made.get("type", "string")
        if isinstance(made.get("format"), str) and made["format"] not in FORMATS:
            if "string" in _listed(kinds):
                self.leave_out(made, "format", place)
            else:
                del made["format"]
        pattern = made.get("pattern")
        if isinstance(pattern, str):
            plain = without_assertions(pattern)
            if plain is None:
                self.leave_out(made, "pattern", place)
                return
            made["pattern"] = plain.text
            if plain.is_wider:
                self.unheld.append(f"{place}/pattern")


def _inside(made: dict[str, Any], read: Callable[[Any, str], Any], place: str) -> dict[str, Any]:
    """Returns the schema with each nested schema replaced by `read(schema, place)`."""
    for key in made.keys() & _INNER:
        value, at = made[key], f"{place}/{key}"
        if key in _MAPS and isinstance(value, Mapping):
            made[key] = {name: read(one, f"{at}/{name}") for name, one in value.items()}
        elif key in _LISTS and isinstance(value, list | tuple):
            made[key] = [read(one, f"{at}/{number}") for number, one in enumerate(value)]
        else:
            made[key] = read(value, at)
    return made


# Rewrites by keyword. No two rewrites read the same keyword, so their order does not matter.
_REWRITES: Mapping[str, Callable[[_Reader, dict[str, Any], str], None]] = MappingProxyType(
    dict.fromkeys(UNHELD, _Reader.read_keywords)
    | {"propertyNames": _Reader.read_names, "oneOf": _Reader.read_one_of}
    | dict.fromkeys((*LEAST, *_MOST), _Reader.read_counts)
    | dict.fromkeys((*BOUNDS, "multipleOf"), _Reader.read_bounds)
    | dict.fromkeys(("format", "pattern"), _Reader.read_texts)
)


def _listed(kinds: object) -> list[object]:
    return list(kinds) if isinstance(kinds, list | tuple) else [kinds]


def _is_integer_bound(bound: float) -> bool:
    """True for a bound that the grammar library can compute: one within 64 bits, beyond which it clamps to its
    extremes.
    """
    return _MIN_INTEGER <= bound <= 2**64


def _is_number_bound(bound: float) -> bool:
    return bound == 0 or _MIN_NUMBER <= abs(bound) <= _MAX_NUMBER


def _is_factor(factor: Decimal) -> bool:
    """True if the factor of `multipleOf` has no more digits than the library accepts; the library refuses invalid
    factors.
    """
    _, digits, exponent = factor.normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) > _MAX_DECIMALS + 1:
        return False
    number = int("".join(map(str, digits)))
    return -_MAX_DECIMALS <= exponent <= _MAX_DECIMALS and number * 10 ** max(exponent, 0) < 2**32


def _takes_texts(rule: object) -> TypeGuard[Mapping[str, Any]]:
    """True if a schema's `type` allows strings."""
    return isinstance(rule, Mapping) and ("type" not in rule or "string" in _listed(rule["type"]))


def _pattern_of(rule: object) -> str | None:
    """Returns a pattern that matches exactly the strings that a schema accepts; None unless the schema has only
    constants or a pattern.
    """
    if not isinstance(rule, Mapping):
        return None
    values = [rule["const"]] if "const" in rule else rule.get("enum")
    if isinstance(values, list) and rule.keys() <= _NOTES | {"const", "enum"}:
        texts = [re.escape(value) for value in values if isinstance(value, str)]
        return f"^(?:{'|'.join(texts)})$" if texts else None
    pattern = rule.get("pattern")
    if not isinstance(pattern, str) or not rule.keys() <= _NOTES | {"pattern"}:
        return None
    plain = without_assertions(pattern)
    return None if plain is None or plain.is_wider else plain.text
