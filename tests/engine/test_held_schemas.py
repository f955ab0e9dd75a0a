"""JSON schemas that agents send: grammars take every value of one, and no other where they hold all of it."""

import json
import re
import time
import timeit
from collections.abc import Callable
from functools import lru_cache

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from weft.core.checks.json_schema import FORMATS, UNHELD, held
from weft.core.checks.json_schema_patterns import without_assertions
from weft.engine.constraints.text import to_grammar_text

STRING = {"type": "string"}
A, B = ({"type": "object", "properties": {name: STRING}, "required": [name]} for name in ("a", "b"))


def told_by(kind: str) -> dict:
    """One kind of a union whose members say which they are."""
    return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}


CLOSED = {**A, "additionalProperties": False}
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
FLOAT64 = 1.7976931348623157e308
# What libraries make of types: a schema, values to try, and whether a grammar holds all of it.
CASES = [
    ({**A, "required": None}, [{}, {"a": "x"}], True),
    ({"type": "object", "properties": None, "required": None}, [{}, {"a": 1}], True),
    ({"type": "array", "items": None, "minItems": None}, [[], [1]], True),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b-c"]}, "additionalProperties": STRING},
        [{}, {"a": "x"}, {"b-c": "x", "a": "y"}, {"c": "x"}, {"a": 1}],
        True,
    ),
    (
        {
            "$defs": {"Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"}},
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/Color"},
            "additionalProperties": {"type": "integer"},
        },
        [{"red": 1}, {"green": 1}],
        True,
    ),
    ({"type": "object", "propertyNames": STRING}, [{"a": 1}, {}], True),
    ({"type": "object", "propertyNames": {"type": "integer"}}, [{"a": 1}, {}], True),
    ({"type": "object", "propertyNames": {"type": ["null", "string"]}}, [{"a": 1}, {}], True),
    ({"type": "object", "propertyNames": False}, [{"a": 1}, {}], True),
    ({**A, "propertyNames": {"type": "integer"}}, [{"a": "x"}, {}], False),
    ({"type": "object", "propertyNames": {"pattern": "^x_"}}, [{"x_a": 1}, {"a": 1}], True),
    ({**A, "propertyNames": {"enum": ["a"]}}, [{"a": "x"}, {"a": "x", "b": 1}], False),
    ({"type": "number", "minimum": -FLOAT64, "maximum": FLOAT64}, [0, -1.5, 10**30], True),
    ({"type": "number", "minimum": -3.4028234663852886e38}, [0, -1.5, 10**30], False),
    (INT64, [0, -(2**63) + 2**10, 2**63 - 1, 2**63], True),
    ({**INT64, "type": ["integer", "null"]}, [None, 5], True),
    ({"type": "integer", "minimum": 0, "maximum": 2**53 - 1}, [0, -1, 2**53], True),
    (
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
        ["1.5", "-2", "+", "x"],
        False,
    ),
    ({"type": "string", "pattern": r"^a\Z"}, ["a", "ab"], True),
    ({"type": "string", "pattern": r"(a)\1"}, ["aa", "b"], False),
    ({"oneOf": [A, B]}, [{"a": "x"}, {"b": "x"}, {"a": "x", "b": "y"}, {"c": 1}], False),
    ({"oneOf": [CLOSED, B]}, [{"a": "x"}, {"b": "x"}, {"c": 1}], True),
    ({"oneOf": [STRING, {"type": "integer"}]}, ["x", 1, None], True),
    (
        {
            "$defs": {"Cat": told_by("cat"), "Dog": told_by("dog")},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "discriminator": {"propertyName": "kind"},
        },
        [{"kind": "cat"}, {"kind": "dog"}, {"kind": "cow"}],
        True,
    ),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [3]}]}, [1, 3, 4], True),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1, 1.5, "x"], False),
    ({"type": "string", "not": {"const": "x"}}, ["x", "y", 1], False),
    ({**A, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{"a": "x"}, {}], False),
    ({**A, "then": {"required": ["b"]}}, [{"a": "x"}, {}], True),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, [{"a": 1}, {}], False),
    ({"type": "array", "items": STRING, "uniqueItems": True}, [["a"], ["a", "a"]], False),
    ({"type": "array", "items": STRING, "uniqueItems": False}, [["a", "a"], [1]], True),
    ({"type": "string", "format": "password"}, ["x"], False),
    ({"type": "integer", "format": "int32"}, [5, "x"], True),
    ({"type": "string", "maxLength": 2**62}, ["x", 1], True),
    ({"type": "array", "maxItems": 5.0, "minItems": 1.0}, [[], [1], [1] * 6], True),
    ({"type": "array", "minItems": -1}, [[]], True),
    ({"type": "number", "multipleOf": 1e-20}, [1], False),
    ({"type": "integer", "maximum": 10**30}, [5, 10**29], False),
    ({"$schema": "http://example.com/mine", "type": "string"}, ["x", 1], True),
    ({"allOf": [{"not": {"required": ["a"]}}], "type": "object"}, [{}, {"a": 1}], False),
    ({"type": "object", "properties": {"not": STRING, "if": STRING}}, [{"not": "x"}], True),
    ({"const": {"not": None}}, [{"not": None}, {}], True),
]


@lru_cache(maxsize=1)
def tokenizer() -> LLTokenizer:
    """A token for each byte."""
    return LLTokenizer("byte")


def takes(schema: dict, value: object) -> bool:
    """Whether the grammar of the schema takes the value, written without spaces."""
    text = to_grammar_text("json", schema, None)
    matcher = LLMatcher(tokenizer(), text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    written = json.dumps(value, separators=(",", ":")).encode()
    return matcher.consume_tokens(list(written)) and matcher.is_accepting()


def without_null(schema: object) -> object:
    """As a reader of JSON schemas takes it that does not know Go's null."""
    if isinstance(schema, dict):
        return {key: without_null(value) for key, value in schema.items() if value is not None}
    return schema


@pytest.mark.parametrize(("schema", "values", "is_held"), CASES, ids=str)
def test_a_grammar_takes_what_the_schema_takes(schema: dict, values: list, is_held: bool):
    """Every value of the schema; and no other, unless a place of the schema is named as not held."""
    assert (held(schema).unheld == ()) == is_held
    rule = schema if "const" in schema else without_null(schema)
    judge = jsonschema.Draft202012Validator(
        {**rule, "$schema": jsonschema.Draft202012Validator.META_SCHEMA["$id"]}
    )
    for value in values:
        if judge.is_valid(value):
            assert takes(schema, value), value
        elif is_held:
            assert not takes(schema, value), value


@pytest.mark.parametrize("key", sorted(UNHELD))
def test_a_keyword_that_is_left_out_is_one_that_the_library_does_not_have(key: str):
    """A row goes as soon as the library can hold the keyword."""
    values = {"minContains": 1, "maxContains": 1, "uniqueItems": True, "dependencies": {"a": ["b"]}}
    schema = {key: values.get(key, {"a": STRING})}
    text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    is_refused, messages = LLMatcher.validate_grammar_with_warnings(text)
    assert is_refused, key
    assert key in str(messages)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_that_is_kept_is_one_that_the_library_has(name: str):
    """And every other is left out."""
    text = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
    assert LLMatcher.validate_grammar(text) == ""


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        ("^a$", "^a$"),
        (r"^\(?=a[(?=]$", r"^\(?=a[(?=]$"),
        ("(?=.*[)])a", "(?:)a"),
        ("[]\\b)]a\\b", "[]\\b)]a(?:)"),
        ("[^](?=]b", "[^](?=]b"),
        ("(?<!(a|b))c", "(?:)c"),
        (r"\bword\b", "(?:)word(?:)"),
        (r"\Aa\Z", "^a$"),
        ("(?P<year>a)(?:b)", "(?P<year>a)(?:b)"),
        (r"(a)\1", None),
        ("(?>a)", None),
        ("(?P<x>a)(?P=x)", None),
    ],
)
def test_what_looks_around_is_left_out_of_a_pattern(pattern: str, plain: str | None):
    """The rest takes at least as much; what goes back to a group has no rest."""
    found = without_assertions(pattern)
    assert (found and found.text) == plain
    if found is not None:
        re.compile(found.text)


@pytest.mark.parametrize("pattern", ["[" * 2**16, "(?=" * 2**14, "[]" * 2**15, "\\\\" * 2**15])
def test_a_pattern_is_read_in_one_pass(pattern: str):
    """However many beginnings it has that do not end: the length of the longest takes milliseconds."""
    short = _cpu_seconds(lambda: without_assertions(pattern[: 2**12]))
    long = _cpu_seconds(lambda: without_assertions(pattern))
    assert long < 100 * short  # sixteen times the length, and 256 times the work where it goes back


def _cpu_seconds(call: Callable[[], object]) -> float:
    """The least of five runs on this thread's own clock, which other processes do not move."""
    return min(timeit.repeat(call, timer=time.thread_time, number=1, repeat=5))


def needs_pairs(num: int, shared: int) -> dict:
    """A union of objects that no single property tells apart, which require `shared` equal constants each."""
    same = {f"k{i}": {"const": 1} for i in range(shared)}
    objects = [
        {
            "type": "object",
            "properties": {**same, "kind": {"const": i}},
            "required": [*same, "kind"],
        }
        for i in range(num)
    ]
    return {"oneOf": [*objects, CLOSED]}


def test_a_property_tells_any_number_of_branches_apart():
    """They are not compared in pairs, whose number grows with the square."""
    assert held({"oneOf": [told_by(f"kind-{i}") for i in range(1000)]}).unheld == ()
    assert held({"oneOf": [{"const": i} for i in range(1000)]}).unheld == ()


def test_pairs_of_branches_are_compared_within_bounds():
    """A schema with more pairs than that is not enforced as a whole."""
    unions = {str(number): needs_pairs(60, 2) for number in range(10)}
    unheld = held({"type": "object", "properties": unions}).unheld
    assert unheld == tuple(f"/properties/{number}/oneOf" for number in range(4, 10))


def many_references() -> dict:
    """A union of the same two objects of 700 constants, again and again."""
    constants = {f"q{i}": {"const": i} for i in range(700)}
    large = {"type": "object", "properties": constants, "required": [*constants]}
    union = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    return {"$defs": {"a": large, "b": large}, "prefixItems": [union] * 500}


@pytest.mark.parametrize("schema", [needs_pairs(90, 25), many_references()], ids=["pairs", "refs"])
def test_hostile_unions_take_little_longer_than_plain_ones(schema: dict):
    """The work on the branches of a schema has a bound, however they are arranged."""
    plain = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
    assert _cpu_seconds(lambda: held(schema)) < 20 * _cpu_seconds(lambda: held(plain))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "multipleOf": float("inf")},
        {"type": "number", "multipleOf": True},
        {"type": "number", "multipleOf": 10**400},
        {"type": "number", "minimum": 10**400, "maximum": -(10**400)},
        {"type": "number", "minimum": float("inf")},
        {"oneOf": [STRING], "anyOf": [STRING], "allOf": 5},
        {"oneOf": [5, None], "required": [5, {}], "type": [{}]},
        {"propertyNames": 5, "properties": 5, "items": 5, "$schema": 5, "format": 5, "pattern": 5},
        {"propertyNames": {"enum": [5]}, "minItems": 10**400, "maxItems": float("inf")},
    ],
    ids=str,
)
def test_a_schema_that_is_none_is_left_to_the_library(schema: dict):
    """It says what is wrong; reading it raises nothing."""
    assert isinstance(held(schema).schema, dict)


def test_forced_calls_have_schemas_in_the_same_form():
    """A structural tag holds schemas, each of which is read so."""
    form = {"type": "json_schema", "json_schema": {"type": "string", "not": {"const": "x"}}}
    tag = json.dumps({"type": "structural_tag", "format": form})
    matcher = LLMatcher(tokenizer(), to_grammar_text("structural_tag", tag, None), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
