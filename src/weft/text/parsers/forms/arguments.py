"""Formats of a call's arguments for structural tags: as one JSON object, or one by one if the form writes them so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# A format of a structural tag, as JSON.
Format: TypeAlias = dict[str, Any]

# Arguments in the example of every family.
JSON_SAMPLE = '{"city": "Paris"}'

# Keywords that are supported for an object whose members are constrained one by one.
_READ = frozenset({"type", "properties", "required", "additionalProperties"})
_NOTES = frozenset(
    "title description $schema $id $comment $defs definitions default examples example deprecated".split()
)
_DEFINITIONS = ("$defs", "definitions")

# Maximum number of parts that are written repeatedly for a schema: leading optional members, and definitions.
_MAX_WAYS = 256
_MAX_COPIED_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter of a tool. `schema` is a complete document."""

    key: str
    schema: Mapping[str, Any]
    is_required: bool


def const(text: str) -> Format:
    """A format that matches exactly this text."""
    return {"type": "const_string", "value": text}


def one_of(formats: Sequence[Format]) -> Format:
    """A format that matches any of the formats."""
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": list(formats)}


def either(formats: Sequence[Format | None]) -> Format | None:
    """A format that matches any of the formats; None if one of them is None, or there are none."""
    known = [one for one in formats if one is not None]
    return one_of(known) if known and len(known) == len(formats) else None


def sequence(*formats: Format) -> Format:
    """Joins formats into a sequence."""
    return formats[0] if len(formats) == 1 else {"type": "sequence", "elements": list(formats)}


def json_value(schema: Mapping[str, Any]) -> Format:
    """JSON under a schema."""
    return {"type": "json_schema", "json_schema": dict(schema)}


def is_plain(schema: Mapping[str, Any], *keys: str) -> bool:
    """True if the schema has no constraints besides `keys`."""
    return schema.keys() <= _NOTES | {"type", *keys}


def values_of(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema lists; empty if it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if isinstance(values, list) else []


def members_of(schema: Mapping[str, Any]) -> list[Member] | None:
    """The parameters in order; None if the schema restricts more than its properties."""
    if not schema.keys() <= _READ | _NOTES:
        return None
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not set(required) <= properties.keys():
        return None
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    referring = {key for key, own in properties.items() if '"$ref"' in json.dumps(own)}
    if len(json.dumps(definitions)) * len(referring) > _MAX_COPIED_CHARS:
        return None
    members = []
    for key, own in properties.items():
        if not isinstance(own, Mapping) or not _can_move(own):
            return None
        copied = definitions if key in referring else {}
        members.append(Member(key, {**own, **copied}, key in required))
    return members


def listed(
    members: Sequence[Member], formats: Sequence[Format | None], separator: str
) -> Format | None:
    """The members in order, where optional ones may be left out; None if that cannot be expressed."""
    written = [one for one in formats if one is not None]
    num_optional = next(
        (place for place, member in enumerate(members) if member.is_required), len(members)
    )
    if len(written) < len(members) or num_optional * len(members) > _MAX_WAYS:
        return None
    followers = [
        _follower(member, one, separator) for member, one in zip(members, written, strict=True)
    ]
    # No separator before the first member that is present: a leading optional member, or the member after those.
    ways = [
        sequence(written[first], *followers[first + 1 :])
        for first in range(min(num_optional + 1, len(members)))
    ]
    return one_of([*ways, *([const("")] if num_optional == len(members) else [])])


def _follower(member: Member, written: Format, separator: str) -> Format:
    whole = sequence(const(separator), written) if separator else written
    return whole if member.is_required else one_of([whole, const("")])


def _can_move(schema: object) -> bool:
    """True if the schema has the same meaning outside its document, with the definitions beside it."""
    if isinstance(schema, list):
        return all(map(_can_move, schema))
    if not isinstance(schema, Mapping):
        return True
    reference = schema.get("$ref", "#/$defs/")
    is_known = not isinstance(reference, str) or reference.startswith(
        ("#/$defs/", "#/definitions/")
    )
    return is_known and all(map(_can_move, schema.values()))
