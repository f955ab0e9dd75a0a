"""Forms of /v1/audio/transcriptions and /v1/audio/translations, and their answers."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.sampling import DrawFields
from weft.schema.usage import Usage


class SpeechForm(DrawFields, frozen=True, kw_only=True):
    """The fields that transcriptions and translations share: the recording, and options for reading it and for the
    answer.
    """

    file: Annotated[bytes, msgspec.Meta(extra_json_schema={"contentEncoding": "binary"})]
    model: str | None = None
    language: str | None = None
    to_language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    response_format: str | None = None
    stream: bool | None = None
    stream_include_usage: bool | None = None
    stream_continuous_usage_stats: bool | None = None
    max_completion_tokens: int | None = None
    # For beam search and for vLLM's own programs; refused.
    n: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    watermarking: bool | None = None
    vllm_xargs: str | None = None


class TranscriptionForm(SpeechForm, frozen=True, kw_only=True):
    """A recording to transcribe."""

    timestamp_granularities: list[str] = msgspec.field(default=[], name="timestamp_granularities[]")
    chunking_strategy: str | None = None
    include: list[str] = msgspec.field(default=[], name="include[]")
    known_speaker_names: list[str] = msgspec.field(default=[], name="known_speaker_names[]")
    known_speaker_references: list[str] = msgspec.field(
        default=[], name="known_speaker_references[]"
    )


class TranslationForm(SpeechForm, frozen=True, kw_only=True):
    """A recording to translate to English, or to `to_language`."""


class SpeechUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of the recording in seconds, rounded up."""

    type: str = "duration"
    seconds: int


class SpeechSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of text with its times; `no_speech_prob` is null if it is unknown."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None = None


class SpeechAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The complete text; a verbose answer includes timestamps."""

    text: str
    usage: SpeechUsage | UnsetType = UNSET
    task: str | UnsetType = UNSET
    language: str | UnsetType | None = UNSET
    duration: float | UnsetType = UNSET
    segments: list[SpeechSegment] | UnsetType = UNSET


class SpeechDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A new piece of the text."""

    content: str


class SpeechChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The only choice of an event; in the last one it has the finish reason."""

    delta: SpeechDelta
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: Any = UNSET


class SpeechChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream. An event without choices has the usage of the whole answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[SpeechChunkChoice]
    usage: Usage | UnsetType = UNSET
