"""Converts JSON objects from the wire and to it: protobuf's `Struct`, and bytes of JSON."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct, Value

from weft.core.errors import BadRequest

MAX_JSON_BYTES = 1 << 20
_MAX_SAFE = (
    2**53 - 1
)  # every integer up to this is exact as a double, the only number of a `Struct`


def from_struct(struct: Struct) -> dict[str, Any]:
    """Returns the object; whole numbers become integers."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def to_struct(given: Mapping[str, Any]) -> Struct:
    """Returns the message for an object of JSON values."""
    return json_format.ParseDict(dict(given), Struct())


def from_json(name: str, data: bytes) -> dict[str, Any]:
    """Returns the object that the bytes of the field `name` hold; raises `BadRequest` for anything else."""
    if len(data) > MAX_JSON_BYTES:
        raise BadRequest(name, f"{name} takes at most {MAX_JSON_BYTES} bytes, got {len(data)}")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRequest(name, f"{name} must be a JSON object: {error}") from None


def to_json(name: str, given: Mapping[str, Any]) -> bytes:
    """Returns the bytes of an object for the field `name`; raises `BadRequest` for values that JSON does not have."""
    try:
        return json.dumps(dict(given), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(name, f"{name} must be JSON: {error}") from None


def _from_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            is_whole = number.is_integer() and abs(number) <= _MAX_SAFE
            return int(number) if is_whole else number
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_from_value(item) for item in value.list_value.values]
        case "string_value" | "bool_value" as kind:
            return getattr(value, kind)
    return None
