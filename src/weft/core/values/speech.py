"""Speech to text: a recording as input, and the engine's outputs clip by clip."""

from enum import StrEnum

import msgspec

from weft.core.values.types import RequestOutput

MAX_FILE_BYTES = 25 * 2**20
# Why a model that only transcribes answers nothing else, and what it answers.
NO_GENERATION = "generate is not supported by this model: it only transcribes speech; use /v1/audio/transcriptions"


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
    """Facts about a decoded recording, and the separator between the texts of its clips.

    `num_audio_tokens` counts the audio tokens of all clips, which are not part of any prompt.
    """

    duration_s: float
    language: str | None
    separator: str
    num_audio_tokens: int = 0


class ClipOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New output for one clip. Clips come in order: the last output of a clip precedes the first of the next clip.

    The clip is from `start_s` to `end_s` seconds of the recording; `is_last` clips have none behind them. `temperature`
    is None if it is that of the request, and `no_speech_prob`, the probability that nothing is said, if it is unknown.
    """

    recording: Recording
    clip: int
    output: RequestOutput
    start_s: float
    end_s: float
    is_last: bool
    temperature: float | None = None
    no_speech_prob: float | None = None

    @property
    def is_finished(self) -> bool:
        """True for the last output of the recording."""
        return self.output.is_finished and self.is_last
