"""Speech to text: a recording in, and what the engine makes of it, clip after clip."""

from enum import StrEnum

import msgspec

from weft.core.values.types import RequestOutput

MAX_FILE_BYTES = 25 * 2**20


class SpeechTask(StrEnum):
    """What is made of speech: its text, or that text in another language."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """A recording, and what is to be done with it. Languages are ISO 639-1 codes; None: the model detects it.

    `prompt` is a text that the answer is to go on from. With `has_timestamps` marks of time stand among the tokens.
    """

    task: SpeechTask
    data: bytes  # a file: WAV, FLAC, MP3, MP4
    language: str | None = None
    to_language: str | None = None
    prompt: str = ""
    hotwords: str | None = None
    has_timestamps: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording once it is decoded: where its clips begin, and what stands between their texts.

    `num_audio_tokens` are those of all clips that no prompt counts.
    """

    duration_s: float
    language: str | None
    starts_s: list[float]
    separator: str
    num_audio_tokens: int = 0

    def end_s(self, clip: int) -> float:
        """Where a clip ends."""
        ends = [*self.starts_s[1:], self.duration_s]
        return ends[clip]


class ClipOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one clip. Clips come in order, each with its last output before the next one's first."""

    recording: Recording
    clip: int
    output: RequestOutput

    @property
    def is_finished(self) -> bool:
        """Whether nothing follows."""
        return self.output.is_finished and self.clip == len(self.recording.starts_s) - 1
