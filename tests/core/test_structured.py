"""What may be asked of an answer's form, and how everything else is refused by name."""

import json

import pytest

from weft.core.checks.json_schema import MAX_COUNT
from weft.core.checks.structured import (
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_JSON_DEPTH,
    kind_of,
    schema_of,
    validate_structured_outputs,
)
from weft.core.checks.validate import Limits, validate_params
from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams, StructuredOutputsParams


def nested(depth):
    """A schema of `depth` levels."""
    schema = {"type": "integer"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def endless():
    """An object inside itself."""
    schema = {}
    schema["items"] = schema
    return schema


GOOD = [
    {"json": {"type": "object"}},
    {"json": '{"type": "object"}'},
    {"json": "true"},
    {"json": nested(MAX_JSON_DEPTH)},
    {"json": {"type": "string"}, "whitespace_pattern": " ?"},
    {"json_object": True},
    {"regex": "(a+)+$"},
    {"regex": "a{10000}"},
    {"regex": r"\{99999\}"},
    {"choice": ["a"]},
    {"choice": ["é", "\n"]},
    {"grammar": 'start: "a"'},
]

BAD = [
    ({}, "structured_outputs", "exactly one of json, .* got none"),
    ({"regex": "a", "choice": ["a"]}, "structured_outputs", "got regex and choice"),
    ({"json": ""}, "json", "must not be empty"),
    ({"json": " \n"}, "json", "must not be empty"),
    ({"json": "{"}, "json", "not valid JSON"),
    ({"json": "[]"}, "json", "must be a schema"),
    ({"json": "false"}, "json", "must be a schema"),
    ({"json": "NaN"}, "json", "not valid JSON"),
    ({"json": 5}, "json", "must be text or an object"),
    ({"json": {"a": {1, 2}}}, "json", "plain JSON"),
    ({"json": {"a": float("nan")}}, "json", "plain JSON"),
    ({"json": endless()}, "json", "plain JSON"),
    ({"json": nested(MAX_JSON_DEPTH + 2)}, "json", "nested deeper than 64"),
    ({"json": "[" * 1000 + "]" * 1000}, "json", "nested deeper than 64"),
    ({"json": "[" * 60_000}, "json", "nested deeper than 64|not valid JSON"),
    ({"json": f'"{"x" * MAX_GRAMMAR_BYTES}"'}, "json", "at most 65536 bytes"),
    ({"json": {"pattern": "a{10001}"}}, "json", "at most 10000 times"),
    # These were written out, which held the event loop for 0.1 to 0.2 s, to find out their length.
    ({"json": {"enum": [0.5] * 500_000}}, "json", "at most 65536 bytes of UTF-8, got more"),
    ({"json": {"const": "é" * 2**20}}, "json", "at most 65536 bytes of UTF-8, got more"),
    ({"json_object": False}, "json_object", "must be true"),
    ({"json_object": 1}, "json_object", "must be true"),
    ({"regex": ""}, "regex", "must not be empty"),
    ({"regex": "a\0"}, "regex", "NUL"),
    ({"regex": "\ud800"}, "regex", "lone surrogate"),
    ({"regex": 5}, "regex", "must be text"),
    ({"regex": "a{1000000}"}, "regex", r"at most 10000 times, got \{1000000\}"),
    ({"regex": "a{2,1000000}"}, "regex", "at most 10000 times"),
    ({"regex": "a{99999999999999999999}"}, "regex", "at most 10000 times"),
    ({"regex": "é" * MAX_GRAMMAR_BYTES}, "regex", "got 131072"),
    ({"grammar": ""}, "grammar", "must not be empty"),
    ({"grammar": "(" * (MAX_GRAMMAR_BYTES + 1)}, "grammar", "at most 65536 bytes"),
    ({"choice": []}, "choice", "at least one"),
    ({"choice": "ab"}, "choice", "must be a list"),
    ({"choice": [""]}, "choice", "none of them empty"),
    ({"choice": [1]}, "choice", "must hold strings"),
    ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice", "at most 4096"),
    ({"choice": ["x" * 40_000] * 2}, "choice", "at most 65536 bytes"),
    ({"structural_tag": "{}"}, "structural_tag", 'of type "structural_tag"'),
    ({"structural_tag": "[1]"}, "structural_tag", 'of type "structural_tag"'),
    ({"structural_tag": "{"}, "structural_tag", "not valid JSON"),
    ({"structural_tag": ""}, "structural_tag", "empty"),
    ({"structural_tag": 5}, "structural_tag", "must be text"),
    (
        {"structural_tag": '{"type": "structural_tag"}'},
        "structural_tag",
        "either format or structures",
    ),
    (
        {"structural_tag": '{"type": "structural_tag", "format": {}, "begin": ""}'},
        "structural_tag",
        "unknown keys",
    ),
    ({"structural_tag": "[" * 82 + "]" * 82}, "structural_tag", "deeper than 80"),
    (
        {"structural_tag": '{"type": "structural_tag", "format": {"pattern": "a{99999}"}}'},
        "structural_tag",
        "a repetition must be at most",
    ),
    ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern", "allowed with json"),
    ({"json_object": True, "whitespace_pattern": ""}, "whitespace_pattern", "must not be empty"),
    (
        {"json_object": True, "whitespace_pattern": " " * 257},
        "whitespace_pattern",
        "must not be empty",
    ),
    ({"json_object": True, "whitespace_pattern": "a" * 257}, "whitespace_pattern", "at most 256"),
]


@pytest.mark.parametrize("given", GOOD)
def test_a_constraint_in_bounds_is_taken(given):
    """Also one that turns out to be no grammar: that is found where it is built."""
    validate_structured_outputs(StructuredOutputsParams(**given))


@pytest.mark.parametrize(("given", "name", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_constraint_is_refused_by_name(given, name, message):
    """Through the one check that every wire uses; messages stay short whatever was sent."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**given))
    limits = Limits(vocab_size=100, max_model_len=64, max_pool_tokens=1000)
    with pytest.raises(BadRequest, match=message) as caught:
        validate_params(params, limits)
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("given", [{"json": {}}, "json", 5])
def test_only_the_struct_is_taken(given):
    """A dict would skip the check of its keys."""
    with pytest.raises(BadRequest, match="must be StructuredOutputsParams"):
        validate_structured_outputs(given)


def test_both_forms_of_a_schema_mean_the_same():
    """Text or object; `true` is the schema that takes everything."""
    assert schema_of('{"b": 1, "a": 2}') == schema_of({"b": 1, "a": 2})
    assert list(schema_of('{"b": 1, "a": 2}')) == ["b", "a"]
    assert schema_of("true") == {}


def test_the_kind_is_the_field_that_is_set():
    """One word for it everywhere."""
    assert kind_of(StructuredOutputsParams(choice=["a"])) == "choice"


@pytest.mark.parametrize("key", ["minItems", "minLength", "minProperties"])
@pytest.mark.parametrize("count", [MAX_COUNT + 1, 2**62, 1e300])
def test_a_schema_that_no_answer_can_meet_is_refused(key, count):
    """An answer of so many items has no end; wherever in a schema or in a structural tag it is."""
    schema = {"type": "object", "properties": {"a": {key: count}}}
    form = {"type": "json_schema", "json_schema": schema}
    tag = json.dumps({"type": "structural_tag", "format": form})
    for name, params in (
        ("json", StructuredOutputsParams(json=schema)),
        ("structural_tag", StructuredOutputsParams(structural_tag=tag)),
    ):
        with pytest.raises(BadRequest, match=f"{key} must be at most {MAX_COUNT}") as caught:
            validate_structured_outputs(params)
        assert caught.value.parameter == name


@pytest.mark.parametrize("number", [-(2**63), -(2**63) + 512])
@pytest.mark.parametrize(
    "schema", [{"const": 0}, {"enum": [1, 0]}, {"const": {"a": [0]}}, {"items": {"enum": [[0]]}}]
)
def test_a_constant_that_ends_the_grammar_library_is_refused(number, schema):
    """It crashes over these integers; the process that it would end also serves others."""
    given = json.loads(json.dumps(schema).replace("0", str(number)))
    with pytest.raises(BadRequest, match="must have no integer from -9223372036854775808"):
        validate_structured_outputs(StructuredOutputsParams(json=given))


def test_bounds_of_64_bits_are_taken():
    """Libraries write them for every integer; and the next number is no danger."""
    whole = {"type": "integer", "minimum": -(2**63), "default": -(2**63)}
    for schema in (whole, {"const": -(2**63) + 513}, {"enum": [2**63, 10**400, -(10**400)]}):
        validate_structured_outputs(StructuredOutputsParams(json=schema))
