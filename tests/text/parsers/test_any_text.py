"""Any text at all, cut anywhere: never an error, never another result, nothing lost."""

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.text.parsers.taking_apart import feed_all, join, take_apart
from weft.text.parsers.answer import AnswerParser, make_parser, read_answer
from weft.text.parsers.forced import forced_parser
from weft.text.parsers.forms.form import ParseContext
from weft.text.parsers.forms.tagged_calls import TaggedCalls
from weft.text.parsers.streams import PartCollector, TextBuffer
from weft.text.parsers.table import REASONING_PARSERS, TOOL_PARSERS, make_output_parser

# What formats are made of: brackets, quotes, keys, words, and all kinds of characters between.
_SCRAPS = [
    *"{}[]()<>\"'\\,:=;`|\n aX1-.é😀",
    *('"name"', '"arguments"', '"parameters"', '"id"', '{"name": "f", "arguments": {', "f(a=", "null"),
    *("'''", '"""', "True", "\\u00e9", "\\ud800", "-1.5e3", "functions.f:0", "function", "json", "  "),
]  # fmt: skip


def _marks(family) -> list[str]:
    """Every literal of the family, also those inside its form, whole and broken."""
    marks = [*family.openers, *family.sections, *family.closers]
    if isinstance(family.form, TaggedCalls):
        tags = family.form.tags
        marks += [tags.name_end, tags.key_start, *tags.key_ends, tags.value_start, tags.value_end]
        marks.append(tags.call_end)
    words = family.example.replace("<", " <").replace(">", "> ").split()
    return [
        *filter(None, marks),
        *words,
        family.example,
        *(mark[: len(mark) // 2] for mark in marks),
    ]


def _texts(marks: list[str]) -> st.SearchStrategy[str]:
    scraps = st.one_of(st.sampled_from(marks), st.sampled_from(_SCRAPS), st.sampled_from(marks))
    return st.lists(scraps, max_size=14).map("".join)


def _pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


CUTS = st.lists(st.integers(0, 400), max_size=8)


@pytest.mark.parametrize("family", TOOL_PARSERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cuts_change_nothing(family, data):
    """One piece, any pieces and single characters give the same; each call's index is its place."""
    text = data.draw(_texts(_marks(TOOL_PARSERS[family])))
    cuts = data.draw(CUTS)
    reasoning = "openai_gptoss" if family == "openai" else None
    whole = take_apart([text], reasoning, family)
    assert take_apart(_pieces(text, cuts), reasoning, family) == whole
    assert take_apart(text, reasoning, family) == whole


@pytest.mark.parametrize("family", [n for n, f in REASONING_PARSERS.items() if not f.is_harmony])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_cuts_change_nothing_about_thoughts(family, data):
    """Thoughts, tags around the answer and calls behind them, in any order and number."""
    marks = REASONING_PARSERS[family]
    literals = [*marks.starts, *marks.ends, *marks.answer_tags, *marks.implicit_ends]
    text = data.draw(_texts([*literals, *_marks(TOOL_PARSERS["kimi_k2"])]))
    is_open = data.draw(st.sampled_from([True, False, None]))
    cuts = data.draw(CUTS)
    options = {"starts_in_reasoning": is_open, "end_markers": ["<|im_end|>", "|>"]}
    whole = take_apart([text], family, "kimi_k2", **options)
    assert take_apart(_pieces(text, cuts), family, "kimi_k2", **options) == whole


@settings(max_examples=60, deadline=None)
@given(_texts(['[{"name": "f", "parameters": {', '{"a": 1}', "}}]", "}, {"]), CUTS)
@example('[{"name":"f","parameters":{"a":', [])
def test_cuts_change_nothing_about_forced_calls(text, cuts):
    """The same for answers that a grammar forces to be calls, cut off or not."""
    for make in (forced_parser, lambda: forced_parser("f")):
        assert join(feed_all(make(), _pieces(text, cuts))) == join(feed_all(make(), [text]))


@pytest.mark.parametrize("family", TOOL_PARSERS)
@settings(max_examples=20, deadline=None)
@given(
    text=st.text(st.characters(exclude_characters="<[{`|", exclude_categories=["Cs"])), cuts=CUTS
)
def test_text_without_marks_is_the_answer(family, text, cuts):
    """Not a character is lost or moved: white space neither."""
    text = text.replace("functools", "")
    expected = [("c", text)] if text else []
    assert take_apart(_pieces(text, cuts), tool=family) == expected


@pytest.mark.parametrize("family", TOOL_PARSERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_arguments_are_json_unless_they_were_cut_off_or_broken(family, data):
    """A well-formed call behind any text has arguments that can be read."""
    text = (
        data.draw(_texts(_SCRAPS))
        .replace("<", "")
        .replace("[", "")
        .replace("{", "")
        .replace("`", "")
    )
    parts = take_apart(["x" + text + TOOL_PARSERS[family].example], tool=family)
    for _, _, arguments, *_ in (part for part in parts if part[0] == "call"):
        assert json.loads(arguments)["city"] == "Paris"


@pytest.mark.parametrize("family", TOOL_PARSERS)
def test_at_most_the_start_of_a_mark_is_held_back(family):
    """Text that is decided comes out at once."""
    parser = make_output_parser(reasoning=None, tool=family)
    assert join(parser.feed("Let me see < and [ too")) == [("c", "Let me see < and [ too")]


@given(st.lists(st.text(st.sampled_from(" \n\t\u3000\x1caé<{"), max_size=3), max_size=8))
def test_text_alone_is_read_as_with_families(pieces):
    """The parser for nothing but text gives, piece by piece, what the one with all the machinery does."""
    context = ParseContext(TextBuffer(), PartCollector(), {})
    whole = AnswerParser(context, read_answer(context, None, None, is_open=None))
    plain = make_parser(None, None)
    assert not isinstance(plain, AnswerParser)
    for piece in pieces:
        assert plain.feed(piece) == whole.feed(piece)
    assert plain.finish() == whole.finish()
