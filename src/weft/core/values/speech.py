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
    """A recording and its task. Languages are ISO 639-1 codes; None: the model detects it.

    `prompt` is a text that the answer continues. With `has_timestamps` the tokens include timestamps.
    """

    task: SpeechTask
    data: bytes  # a file: WAV, FLAC, MP3, MP4
    language: str | None = None
    to_language: str | None = None
    prompt: str = ""
    hotwords: str | None = None
    has_timestamps: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a decoded recording: where its clips begin, and the separator between their texts.

    `num_audio_tokens` counts the audio tokens of all clips, which no prompt includes.
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
    """New output of one clip. Clips come in order: the last output of a clip precedes the first of the next."""

    recording: Recording
    clip: int
    output: RequestOutput

    @property
    def is_finished(self) -> bool:
        """True for the last output of the recording."""
        return self.output.is_finished and self.clip == len(self.recording.starts_s) - 1
