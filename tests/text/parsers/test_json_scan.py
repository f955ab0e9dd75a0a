"""The end of a JSON value in text that comes in pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.text.parsers.json_scan import MAX_DEPTH, JsonScanner

VALUES = st.recursive(
    st.text() | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def end_of(text: str, width: int) -> int | None:
    """Where the scanner sees the end, given pieces of this width."""
    scanner = JsonScanner()
    for start in range(0, len(text), width):
        end = scanner.push(text[start : start + width])
        if end is not None:
            return None if scanner.is_broken else start + end
    return None


@given(VALUES, st.integers(1, 20), st.sampled_from([",", " ", "]", "}", "\n"]), st.booleans())
def test_the_end_is_where_the_value_ends(value, width, after, is_ascii):
    """Whatever follows, and wherever the pieces are cut."""
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert end_of(text + after + text, width) == len(text)


@given(VALUES, st.integers(1, 20))
def test_the_start_of_a_value_has_no_end(value, width):
    """A value is never over before its last bracket or quote."""
    text = json.dumps([value])
    assert end_of(text[:-1], width) is None


@pytest.mark.parametrize("text", ["[}", '{"a": [1}', ")", "", '["', "]"])
@pytest.mark.parametrize("width", [1, 9])
def test_what_cannot_be_a_value_has_no_end(text, width):
    """A bracket of another kind, or none at all."""
    assert end_of(text, width) is None


@pytest.mark.parametrize("width", [1, 10**6])
def test_depth_is_bounded(width):
    """What nests deeper would break whoever parses it."""
    assert end_of("[" * MAX_DEPTH + "]" * MAX_DEPTH, width) == 2 * MAX_DEPTH
    assert end_of("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), width) is None
