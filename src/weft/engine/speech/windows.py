"""Reads the answer for a window of a recording: which tokens count, and where the next window begins."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.core.values.media import SpeechTokens
from weft.core.values.types import FinishReason, PositionLogprobs

STEP_S = 0.02  # between the times of two timestamp tokens
# A window is silent if nothing is said in it with this probability, unless the answer is sure of itself.
_NO_SPEECH = 0.6
_LEAST_LOGPROB = -1.0  # average of an answer's tokens; below, another temperature is tried
_MOST_COMPRESSION = 2.4  # of an answer's text; above, it repeats itself

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The answer for a window at one temperature, without its end token."""

    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    temperature: float
    no_speech_prob: float
    finish_reason: FinishReason | None
    average: float  # log-probability of a token, the end included
    text: str

    @property
    def is_silent(self) -> bool:
        """True if nothing is said in the window."""
        return self.no_speech_prob > _NO_SPEECH and self.average < _LEAST_LOGPROB

    @property
    def has_failed(self) -> bool:
        """True if the answer repeats itself, or the model is unsure of it though something is said."""
        data = self.text.encode()
        if len(data) > _MOST_COMPRESSION * len(zlib.compress(data)):
            return True
        return self.average < _LEAST_LOGPROB and not self.is_silent


@dataclass(frozen=True, slots=True)
class Window:
    """What counts of an answer: its segments, each a range of tokens, and the seconds to the next window."""

    segments: list[slice]
    advance_s: float


def read_window(
    transcript: Transcript, tokens: SpeechTokens, length_s: float, decode: Decode
) -> Window:
    """Returns the segments of an answer for a window of `length_s` seconds.

    A segment is between two times. Where two times adjoin, one segment ends and another begins. An answer that goes on
    behind the last such place ends there, and so does the window: what follows is heard again from its beginning.
    """
    if transcript.is_silent:
        return Window([], length_s)
    ids, first = transcript.token_ids, tokens.first_timestamp
    is_time = [token >= first for token in ids]
    ends = [i + 1 for i, both in enumerate(pairwise(is_time)) if all(both)]
    is_whole = not ends or is_time[-2:] == [False, True]
    if is_whole:
        ends.append(len(ids))
    advance_s = length_s if is_whole else (ids[ends[-1] - 1] - first) * STEP_S
    spans = [slice(begin, end) for begin, end in pairwise([0, *ends])]
    return Window(
        [span for span in spans if _has_speech(ids[span], tokens, decode)], min(advance_s, length_s)
    )


def _has_speech(ids: Sequence[int], tokens: SpeechTokens, decode: Decode) -> bool:
    """True if a segment takes time and has text."""
    times = [token for token in ids if token >= tokens.first_timestamp]
    if len(times) > 1 and times[0] == times[-1]:
        return False
    return bool(decode(text_of(ids, tokens)).strip())


def text_of(ids: Sequence[int], tokens: SpeechTokens) -> list[int]:
    """Returns the tokens of text among these."""
    return [token for token in ids if token < tokens.end]
