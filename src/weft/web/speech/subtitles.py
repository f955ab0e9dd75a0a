"""Segments as subtitles: SubRip and WebVTT."""

from collections.abc import Sequence

from starlette.responses import PlainTextResponse

from weft.schema.speech import SpeechSegment


def to_srt(segments: Sequence[SpeechSegment]) -> PlainTextResponse:
    """Numbered subtitles, with commas before the milliseconds."""
    cues = (f"{number}\n{_cue(one, ',')}\n" for number, one in enumerate(segments, 1))
    return PlainTextResponse("\n".join(cues))


def to_vtt(segments: Sequence[SpeechSegment]) -> PlainTextResponse:
    """A WebVTT file."""
    cues = (f"{_cue(one, '.')}\n" for one in segments)
    return PlainTextResponse("\n".join(["WEBVTT\n", *cues]), media_type="text/vtt")


def _cue(segment: SpeechSegment, point: str) -> str:
    """The times and the text. An arrow in the text would be read as times."""
    text = " ".join(segment.text.split()).replace("-->", "->")
    return f"{_time(segment.start, point)} --> {_time(segment.end, point)}\n{text}"


def _time(seconds: float, point: str) -> str:
    whole = round(seconds * 1000)
    minutes, milliseconds = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"
