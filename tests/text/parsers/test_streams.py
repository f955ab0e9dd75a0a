"""The text between writer and reader, and the search for marks in it."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.text.parsers.streams import CutOff, Malformed, Markers, TextBuffer

OVERLAPPING = Markers(["abc", "b", "ca", "cab"])


def split(markers: Markers, pieces: list[str]) -> list[str]:
    """The text between marks, and the marks, in turn."""
    buffer, found = TextBuffer(), []

    def read():
        marker: str | None = ""
        while marker is not None:
            text: list[str] = []
            marker = yield from buffer.until(markers, text.append)
            found.extend(["".join(text), marker or ""])

    reading = read()
    for piece in pieces:
        buffer.add(piece)
        next(reading, None)
    buffer.end()
    next(reading, None)
    return found


@given(st.lists(st.text("abcx", max_size=4)))
def test_overlapping_marks_are_found_the_same_however_the_text_is_cut(pieces):
    """The mark that starts first wins, not the one that is whole first."""
    text = "".join(pieces)
    assert split(OVERLAPPING, pieces) == split(OVERLAPPING, [text])
    assert "".join(split(OVERLAPPING, pieces)) == text


def test_the_mark_that_starts_first_wins():
    """Even when another one inside it is whole already; and the inner one if nothing comes of it."""
    assert split(OVERLAPPING, ["xa", "b", "c"]) == ["x", "abc", "", ""]
    assert split(OVERLAPPING, ["xa", "b", "x"]) == ["xa", "b", "x", ""]


def test_what_was_read_is_not_held():
    """An answer may be long; what waits is short, and so is what is remembered of the rest."""
    buffer = TextBuffer()
    reading = buffer.until(Markers(["END"]), lambda text: None)
    tracemalloc.start()
    try:
        for _ in range(500):
            buffer.add("E" * 10_000)
            next(reading)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def finish(reading) -> None:
    """Run a reader that has all its text."""
    assert list(reading) == []


@pytest.mark.parametrize(("text", "error"), [("</a", CutOff), ("", CutOff), ("</b", Malformed)])
def test_an_expected_mark_is_whole_or_cut_off_or_another(text, error):
    """A reader must tell the end of the text from text that should not be there."""
    buffer = TextBuffer()
    buffer.add(text)
    buffer.end()
    with pytest.raises(error) as raised:
        finish(buffer.expect(Markers(["</ab>"])))
    assert raised.type is error
