"""Twenty schemas of the kinds that people write, each with an end in sight for a model that rambles."""

from typing import Any

Schema = dict[str, Any]


def an_object(properties: Schema, required: list[str] | None = None, **rest: Any) -> Schema:
    """A closed object; everything in it is required unless some are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **rest,
    }


WORD: Schema = {"type": "string", "maxLength": 8}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 9999}

SCHEMAS: dict[str, Schema] = {
    "flat": an_object({"name": WORD, "age": COUNT, "ok": {"type": "boolean"}}),
    "optional": an_object({"a": WORD, "b": COUNT, "c": {"type": "null"}}, required=["b"]),
    "nested": an_object(
        {"user": an_object({"name": WORD, "home": an_object({"street": WORD, "no": COUNT})})}
    ),
    "enum": {"enum": ["red", "grün", "青", 1, 2.5, None, True, {"a": [1]}]},
    "const": an_object({"kind": {"const": "fixed"}, "value": COUNT}),
    "any_of": {"anyOf": [WORD, COUNT, {"type": "null"}, an_object({"x": COUNT})]},
    "types": an_object(
        {"v": {"type": ["integer", "boolean", "null"], "maximum": 99, "minimum": 0}}
    ),
    "array": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 5},
    "array_of_objects": {
        "type": "array",
        "items": an_object({"id": COUNT, "tag": {"enum": ["x", "y"]}}),
        "minItems": 1,
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [COUNT, {"type": "boolean"}, {"enum": ["z"]}],
        "items": False,
        "minItems": 3,
    },
    "ref": {
        "$defs": {"point": an_object({"x": COUNT, "y": COUNT})},
        **an_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "recursive": {
        "$defs": {
            "leaf": an_object({"v": {"type": "boolean"}}),
            "tree": an_object(
                {
                    "v": {"type": "boolean"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2},
                }
            ),
        },
        "$ref": "#/$defs/tree",
    },
    "formats": an_object(
        {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "time"},
            "id": {"type": "string", "format": "uuid"},
            "ip": {"type": "string", "format": "ipv4"},
        }
    ),
    "date_time": {"type": "string", "format": "date-time"},
    "pattern": an_object({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}}),
    "unicode": an_object(
        {"größe": COUNT, "名前": {"type": "string", "pattern": "^[一-龥ぁ-ん]{1,4}$"}, "🦉": WORD}
    ),
    "numbers": an_object(
        {
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "low": {"type": "integer", "exclusiveMinimum": -50, "exclusiveMaximum": 50},
            "step": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
        }
    ),
    "all_of": {
        "allOf": [
            {"type": "object", "properties": {"a": COUNT}, "required": ["a"]},
            an_object({"a": {"type": "integer"}, "b": WORD}),
        ]
    },
    "map": {"type": "object", "additionalProperties": COUNT, "maxProperties": 0},
    "tool_calls": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {
            "anyOf": [
                an_object(
                    {
                        "name": {"enum": ["weather"]},
                        "parameters": an_object({"city": WORD, "unit": {"enum": ["C", "F"]}}),
                    }
                ),
                an_object({"name": {"enum": ["time"]}, "parameters": an_object({})}),
            ]
        },
    },
}
