"""Objects that were cut off: closed as the official clients close them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from weft.web.chat.partial_json import completed

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(), _VALUES, max_size=3)
_INDENTS = st.sampled_from([None, 0, 2])


@given(_OBJECTS, _INDENTS, st.data())
def test_any_start_of_an_object_reads_as_the_clients_reader_reads_it(value, indent, data):
    """The anthropic client shows a call's input so far in the same way."""
    text = json.dumps(value, indent=indent)
    start = text[: data.draw(st.integers(1, len(text)))]
    assert json.loads(completed(start)) == from_json(start.encode(), partial_mode=True)


@given(_OBJECTS, _INDENTS)
def test_a_whole_object_is_left_as_it_was_written(value, indent):
    """Digits and spaces included."""
    text = json.dumps(value, indent=indent)
    assert completed(text) == text


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("", "{}"),
        (" ", "{}"),
        ('{"a": 12', '{"a": 12}'),
        ('{"a": 12.', "{}"),
        ('{"a": 1e', "{}"),
        ('{"a": -', "{}"),
        ('{"a": tru', "{}"),
        ('{"a": "b', "{}"),
        ('{"a": [1, "b', '{"a": [1]}'),
        ('{"a": {"b": 1, "c"', '{"a": {"b": 1}}'),
        ('{"a": 10000000000000000000000.0', '{"a": 10000000000000000000000.0}'),
    ],
)
def test_what_is_not_complete_is_left_out(text, closed):
    """A key without its value, a text without its end, a number that may go on."""
    assert completed(text) == closed


def test_long_inputs_take_linear_time():
    """A hundred thousand values, and the same number of escapes."""
    text = '{"a": [' + "1, " * 100_000 + '"' + "\\n" * 100_000
    assert completed(text).endswith("1]}")
