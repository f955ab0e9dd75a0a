"""Speech to text: a recording as input, and the engine's outputs clip by clip."""

from enum import StrEnum

import msgspec

from weft.core.values.types import RequestOutput

MAX_FILE_BYTES = 25 * 2**20


class SpeechTask(StrEnum):
    """Task for a recording: its transcript, or a translation."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """A recording and the task for it. Languages are ISO 639-1 codes; with None, the model detects the language.

    `prompt` is a text that the answer continues. With `has_timestamps` the answer's tokens include timestamps.
    """

    task: SpeechTask
    data: bytes  # a file in the format WAV, FLAC, MP3 or MP4
    language: str | None = None
    to_language: str | None = None
    prompt: str = ""
    hotwords: str | None = None
    has_timestamps: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a decoded recording: the start times of its clips, and the separator between their texts.

    `num_audio_tokens` counts the audio tokens of all clips, which are not part of any prompt.
    """

    duration_s: float
    language: str | None
    starts_s: list[float]
    separator: str
    num_audio_tokens: int = 0

    def end_s(self, clip: int) -> float:
        """Returns the time at which a clip ends, in seconds."""
        ends = [*self.starts_s[1:], self.duration_s]
        return ends[clip]


class ClipOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New output for one clip. Clips come in order: the last output of a clip precedes the first of the next clip."""

    recording: Recording
    clip: int
    output: RequestOutput

    @property
    def is_finished(self) -> bool:
        """True for the last output of the recording."""
        return self.output.is_finished and self.clip == len(self.recording.starts_s) - 1
