"""Segments of a clip: its tokens between timestamp tokens, which the model writes at the start and end of a segment."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weft.core.values.speech import ClipOutput
from weft.schema.speech import SpeechSegment

_STEP_S = 0.02  # time between two timestamp tokens


@dataclass(slots=True)
class _Open:
    """A segment without an end yet."""

    start_s: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWriter:
    """`decode` makes a text of tokens; the mark of second 0 is the token `first_timestamp_id`."""

    decode: Callable[[list[int]], str]
    first_timestamp_id: int
    eos_token_ids: tuple[int, ...]
    temperature: float

    def segments(self, clip: ClipOutput, first_number: int) -> Iterator[SpeechSegment]:
        """Yields the numbered segments of a complete clip. A segment without an end mark ends with the clip."""
        start_s, end_s = clip.start_s, clip.end_s
        number = first_number
        for open_, until_s in self._spans(clip, end_s - start_s):
            text = self.decode(open_.tokens)
            data = text.encode()
            yield SpeechSegment(
                id=number,
                seek=int(start_s),
                start=min(start_s + open_.start_s, end_s),
                end=min(start_s + until_s, end_s),
                text=text,
                tokens=open_.tokens,
                temperature=self.temperature if clip.temperature is None else clip.temperature,
                avg_logprob=sum(open_.logprobs) / len(open_.logprobs),
                compression_ratio=len(data) / len(zlib.compress(data)),
                no_speech_prob=clip.no_speech_prob,
            )
            number += 1

    def _spans(self, clip: ClipOutput, length_s: float) -> Iterator[tuple[_Open, float]]:
        (answer,) = clip.output.outputs
        open_ = _Open(0.0)
        for token, row in zip(answer.token_ids, answer.logprobs or (), strict=True):
            if token in self.eos_token_ids:
                continue
            if token < self.first_timestamp_id:
                open_.tokens.append(token)
                open_.logprobs.append(row[token].logprob)
                continue
            at_s = (token - self.first_timestamp_id) * _STEP_S
            if open_.tokens:
                yield open_, max(at_s, open_.start_s)
            open_ = _Open(at_s)
        if open_.tokens:
            yield open_, max(length_s, open_.start_s)
