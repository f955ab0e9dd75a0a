"""Answers for windows of a recording: segments, and where the next window begins."""

import pytest

from weft.core.values.media import SpeechTokens
from weft.engine.speech.windows import Transcript, read_window

T = 1000  # the token of second 0
TOKENS = SpeechTokens(
    end=900, start=901, previous=902, no_speech=903, first_timestamp=T, languages={"en": 904}
)


def transcript(*ids, average=-0.3, no_speech=0.1, text="well", temperature=0.0):
    return Transcript(
        token_ids=list(ids), logprobs=[{} for _ in ids], temperature=temperature,
        no_speech_prob=no_speech, finish_reason=None, average=average, text=text,
    )  # fmt: skip


def at(seconds):
    return T + round(seconds * 50)


def read(answer, length_s=30.0):
    """Segments as their tokens, and the advance."""
    window = read_window(answer, TOKENS, length_s, lambda ids: " " * (7 in ids) or str(ids)[1:-1])
    return [answer.token_ids[span] for span in window.segments], window.advance_s


@pytest.mark.parametrize(
    ("ids", "segments", "advance_s"),
    [
        ([T, 1, 2, at(5)], [[T, 1, 2, at(5)]], 30.0),
        ([T, 1, 2], [[T, 1, 2]], 30.0),
        ([], [], 30.0),
        (
            [T, 1, at(5), at(5), 2, at(8)],
            [[T, 1, at(5)], [at(5), 2, at(8)]],
            30.0,
        ),
        ([T, 1, at(5), at(6), 2, 3], [[T, 1, at(5)]], 5.0),
        ([T, 1, at(5), at(6), 2, at(8), at(8)], [[T, 1, at(5)], [at(6), 2, at(8)]], 8.0),
        ([T, 7, at(5), at(5), 2, at(8)], [[at(5), 2, at(8)]], 30.0),
        ([T, 1, T], [], 30.0),
        ([T, 1, at(40), at(40), 2], [[T, 1, at(40)]], 30.0),
    ],
    ids=["one", "open", "none", "two", "cut", "ended", "blank", "no time", "beyond the end"],
)
def test_a_window_ends_where_its_last_whole_segment_does(ids, segments, advance_s):
    """An answer that goes on behind two adjoining times is heard again from there; blank segments do not count."""
    assert read(transcript(*ids)) == (segments, pytest.approx(advance_s))


def test_silence_has_no_segments():
    """If nothing is probably said and the answer is unsure of itself."""
    ids = [T, 1, at(5), at(6), 2]
    assert read(transcript(*ids, average=-1.5, no_speech=0.7)) == ([], 30.0)
    assert read(transcript(*ids, average=-0.5, no_speech=0.7)) == (
        [[T, 1, at(5)]],
        pytest.approx(5.0),
    )


@pytest.mark.parametrize(
    ("changes", "has_failed"),
    [
        ({}, False),
        ({"average": -1.2}, True),
        ({"average": -1.2, "no_speech": 0.7}, False),
        ({"text": "so " * 100}, True),
        ({"text": "so " * 100, "average": -1.2, "no_speech": 0.7}, True),
    ],
)
def test_improbable_and_repeated_answers_have_failed(changes, has_failed):
    """An improbable answer to silence has not: nothing is said."""
    assert transcript(1, **changes).has_failed is has_failed
