"""Answers that have to be calls: what the parsers find, however the text is cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.text.parsers.parts import Arguments, Content, Reasoning, ToolCall
from weft.web.chat.forced import AfterReasoning, NamedCall, RequiredCalls

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
_CALLS = st.lists(
    st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=4), _VALUES)),
    min_size=1,
    max_size=3,
)


def joined(parts):
    """Calls by index: their names, and their arguments in one piece."""
    names = {part.index: part.name for part in parts if isinstance(part, ToolCall)}
    texts = dict.fromkeys(names, "")
    for part in parts:
        if isinstance(part, Arguments):
            texts[part.index] += part.text
    return [(names[index], texts[index]) for index in sorted(names)]


def run(parser, pieces):
    """All parts of a text that comes in pieces."""
    return [part for piece in pieces for part in parser.feed(piece)] + parser.finish()


@given(calls=_CALLS, cuts=st.lists(st.integers(0, 400), max_size=12), has_spaces=st.booleans())
def test_required_calls_come_out_as_they_went_in(calls, cuts, has_spaces):
    """Names once, arguments character for character, wherever the text is cut and however it is spaced."""
    separators = None if has_spaces else (",", ":")
    text = json.dumps(
        [{"name": name, "parameters": arguments} for name, arguments in calls],
        separators=separators,
    )
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert joined(run(RequiredCalls(), pieces)) == [
        (name, json.dumps(arguments, separators=separators)) for name, arguments in calls
    ]


def test_a_call_is_told_before_its_arguments_are_complete():
    """With the first character of the parameters; no sooner, because the name may be cut."""
    parser = RequiredCalls()
    assert parser.feed('[{"name":"f","parameters":') == []
    assert parser.feed('{"a') == [ToolCall(0, "f"), Arguments(0, '{"a')]
    assert parser.feed('":1}}') == [Arguments(0, '":1}')]
    assert parser.feed(',{"name":"g","parameters":{}}]') == [ToolCall(1, "g"), Arguments(1, "{}")]


@pytest.mark.parametrize("length", range(len('[{"name":"f","parameters":{"a":"\\"}"}}]')))
def test_a_cut_off_answer_gives_what_was_there(length):
    """The length limit may end an answer anywhere."""
    text = '[{"name":"f","parameters":{"a":"\\"}"}}]'
    whole = '{"a":"\\"}"}'
    found = joined(run(RequiredCalls(), [text[:length]]))
    assert found == [] or whole.startswith(found[0][1])


def test_a_named_call_is_all_of_the_answer():
    """The call begins with the first text and has index 0."""
    assert run(NamedCall("f"), ["", '{"a"', ":1}"]) == [
        ToolCall(0, "f"),
        Arguments(0, '{"a"'),
        Arguments(0, ":1}"),
    ]


class Thoughts:
    """A stand-in: capital letters are thoughts."""

    def feed(self, text):
        """One part a character."""
        return [Reasoning(char) if char.isupper() else Content(char) for char in text]

    def finish(self):
        """Nothing is held back."""
        return []


def test_a_forced_call_begins_after_the_thoughts():
    """They are told as thoughts, and the call's parser never sees them."""
    parts = run(AfterReasoning(Thoughts(), NamedCall("f")), ["AB{}"])
    assert parts == [
        Reasoning("A"),
        Reasoning("B"),
        ToolCall(0, "f"),
        Arguments(0, "{"),
        Arguments(0, "}"),
    ]
