"""Stop strings in streamed text, against searching the whole."""

from hypothesis import given
from hypothesis import strategies as st

from weft.text.outputs.stops import StopMatcher


def run(pieces, stops, is_included=False, num_unsearched=0):
    """What was shown after each piece, and the stop string that ended it."""
    matcher = StopMatcher(stops, is_included=is_included)
    shown = []
    for position, piece in enumerate(pieces):
        found = matcher.push(piece, is_searched=position >= num_unsearched)
        shown.append(found.text)
        if found.stop is not None:
            return shown, found.stop
    return [*shown, matcher.flush()], None


def oracle(pieces, stops, is_included, num_unsearched):
    """Look at every prefix of the text in turn for a stop string that ends it."""
    text = "".join(pieces)
    first = len("".join(pieces[:num_unsearched])) + 1
    for end in range(first, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if is_included else end - len(stop)], stop
    return text, None


SMALL = st.text("ab", min_size=1, max_size=4)


@given(
    st.lists(st.text("abc", max_size=5), max_size=12),
    st.lists(SMALL, max_size=4),
    st.booleans(),
    st.integers(0, 4),
)
def test_streamed_search_finds_what_searching_the_whole_finds(
    pieces, stops, is_included, num_unsearched
):
    """The earliest complete stop string wins, however the text was cut into pieces."""
    shown, stop = run(pieces, stops, is_included, num_unsearched)
    assert ("".join(shown), stop) == oracle(pieces, stops, is_included, num_unsearched)


def test_the_stop_string_that_completes_first_wins():
    """Not the one that begins first, nor the one listed first."""
    assert run(["abcdef"], ["bcdef", "cd"]) == (["ab"], "cd")


def test_of_two_that_complete_together_the_first_listed_wins():
    """The caller's order decides, also when the other is longer."""
    assert run(["xabc"], ["c", "abc"])[1] == "c"
    assert run(["xabc"], ["abc", "c"])[1] == "abc"


def test_what_may_begin_a_stop_string_is_held_back_and_shown_at_the_end():
    """At most one character less than the longest stop string is ever held."""
    assert run(["hello", " ", "w"], ["STOP"]) == (["he", "l", "l", "o w"], None)


def test_nothing_is_held_back_when_the_stop_string_is_shown_anyway():
    """With the stop string included there is nothing to take back."""
    assert run(["ab", "cd", "ef"], ["cde"], is_included=True) == (["ab", "cd", "e"], "cde")


def test_a_stop_string_may_begin_before_min_tokens_and_end_after():
    """`min_tokens` forbids an early end; it is the end that must come after."""
    assert run(["xEN", "D", "y"], ["END"], num_unsearched=1) == (["x", ""], "END")
    assert run(["xEND", "y"], ["END"], num_unsearched=1)[1] is None


def test_without_stop_strings_text_passes_through():
    """No stop strings, no delay."""
    assert run(["a", "", "b"], []) == (["a", "", "b", ""], None)
