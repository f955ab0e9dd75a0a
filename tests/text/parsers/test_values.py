"""Values that are not written as JSON: Python's literals, and plain text typed by a schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.text.parsers.forms.literals import to_json
from weft.text.parsers.forms.values import ANY_KIND, kinds_of, typed_json
from weft.text.parsers.streams import Malformed

LITERALS = st.recursive(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab'\"\\\n"), inner),
    max_leaves=10,
)


@given(LITERALS)
def test_literals_mean_in_json_what_they_mean_in_python(value):
    """`repr` is how Python writes them, and how models learned it."""
    assert json.loads(to_json(repr(value))) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1, 'a',)", '[1,"a"]'),
        ("-007", "-7"),
        (".5", "0.5"),
        ("1.", "1.0"),
        ("1_000", "1000"),
        ("9" * 5000, "9" * 5000),
        (
            r"'\x41é\101\q\
'",
            '"AéA\\\\q"',
        ),
        (r"r'\d'", r'"\\d"'),
        ("'''a'b'''", '"a\'b"'),
        (r"'\ud800'", r'"\ud800"'),
        ("{'a': {}, 'b': []}", '{"a":{},"b":[]}'),
        ("true", "true"),
    ],
)
def test_a_literal_becomes_this_json(text, expected):
    """Numbers keep their digits; JSON's own words are understood too."""
    assert to_json(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "a", "f(1)", "1 + 2", "[1", "[1,,2]", "{1: 2}", "{'a'}", "'a' 'b'", "1 2", "'a", "nan", "(]",
     "[" * 5000, r"'\U11111111'", "[1 2]", "{'a': }", "__import__('os')", "lambda: 0", "--1"],
)  # fmt: skip
def test_what_is_no_literal_is_refused(text):
    """Nothing is evaluated, and no text makes the reader fail in another way."""
    with pytest.raises(Malformed):
        to_json(text)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, " 7\n", "7"),
        ({"type": "integer"}, "seven", '"seven"'),
        ({"type": "integer"}, "7.5", '"7.5"'),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "null"}, "None", "null"),
        ({"type": "array"}, "[1, 'a']", '[1,"a"]'),
        ({"type": "array"}, "[1, x]", '"[1, x]"'),
        ({"type": "object"}, '{"a": 1.0}', '{"a": 1.0}'),
        ({"type": "object"}, "[1]", '"[1]"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "7", '"7"'),
        ({"type": ["string", "integer"]}, '"7"', r'"\"7\""'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", "7"),
        ({"oneOf": [{"const": "a"}, {"enum": [1, 2]}]}, "2", "2"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"properties": {}}, "{}", "{}"),
        ({"items": {}}, "[]", "[]"),
        ({"type": "made up"}, "7", "7"),
        ({}, '"7"', '"7"'),
        ({}, "", '""'),
        ({}, "NaN", '"NaN"'),
        ({}, "it's", '"it\'s"'),
        (None, "a b", '"a b"'),
    ],
)
def test_text_becomes_what_the_schema_asks_for(schema, text, expected):
    """And a string where it cannot: the tool then says what is wrong, and nothing is lost."""
    assert typed_json(text, kinds_of(schema)) == expected


def test_a_schema_may_nest_without_end():
    """Schemas are the caller's; looking for types stops soon."""
    schema: dict = {}
    schema["anyOf"] = [schema]
    assert kinds_of(schema) == ANY_KIND


@given(
    st.text(), st.sampled_from([{}, {"type": "object"}, {"type": "string"}, {"type": "integer"}])
)
def test_any_text_becomes_json(text, schema):
    """No text fails, and what comes out can always be read."""
    json.loads(typed_json(text, kinds_of(schema)), parse_int=str)
