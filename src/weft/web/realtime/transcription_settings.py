"""Settings of the sounds of a session: their format, and whether they are transcribed."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.errors import BadRequest
from weft.web.realtime.sounds import RATE

_PCM: Final = {"type": "audio/pcm", "rate": RATE}
_REFUSED_OF_TRANSCRIPTIONS: Final = {
    "delay": "a transcript begins when the buffer is committed",
    "keywords": "give words in prompt",
    "languages": "give one language, or none and the model detects it",
}


class TranscriptionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sounds are transcribed, with the names of the API."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    delay: str | None = None
    keywords: list[str] | None = None
    languages: list[str] | None = None


class SoundInputFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the sounds that a client sends; fields that are absent keep their values."""

    format: dict[str, Any] | None = None
    transcription: TranscriptionFields | UnsetType | None = UNSET
    noise_reduction: dict[str, Any] | None = None
    turn_detection: dict[str, Any] | None = None


class SoundFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of sounds in both directions."""

    input: SoundInputFields | None = None
    output: dict[str, Any] | None = None


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """How sounds are transcribed."""

    model: str
    language: str | None = None
    prompt: str | None = None


def changed_transcription(
    now: Transcription | None, fields: SoundFields | None, model: str, *, can_transcribe: bool
) -> Transcription | None:
    """The settings with `fields`; `model` is the name of the session's model."""
    if fields is None:
        return now
    if fields.output is not None:
        raise _refused("output", "be absent: this server does not speak")
    given = fields.input
    if given is None:
        return now
    _check(given)
    if given.transcription is UNSET:
        return now
    if given.transcription is None:
        return None
    return _to_transcription(given.transcription, model, can_transcribe=can_transcribe)


def shown_sounds(transcription: Transcription | None) -> dict[str, Any]:
    """The settings of sounds, as a session shows them."""
    return {
        "input": {
            "format": _PCM,
            "transcription": None
            if transcription is None
            else msgspec.structs.asdict(transcription),
            "noise_reduction": None,
            "turn_detection": None,
        }
    }


def _check(given: SoundInputFields) -> None:
    form = given.format
    if form is not None and ({**_PCM, **form} != _PCM or "type" not in form):
        raise _refused(
            "input.format",
            f"be of type audio/pcm with the rate {RATE}: other formats are not supported",
        )
    if given.noise_reduction is not None:
        raise _refused("input.noise_reduction", "be null: this server does not filter noise")
    if given.turn_detection is not None:
        raise _refused(
            "input.turn_detection",
            "be null: this server does not detect turns; send input_audio_buffer.commit",
        )


def _to_transcription(
    given: TranscriptionFields, model: str, *, can_transcribe: bool
) -> Transcription:
    place = "input.transcription"
    if not can_transcribe:
        raise _refused(place, "be null: this model does not transcribe")
    if given.model not in (None, model):
        raise _refused(f"{place}.model", f"be {model!a}, the model of the session")
    for name, reason in _REFUSED_OF_TRANSCRIPTIONS.items():
        if getattr(given, name):
            raise _refused(f"{place}.{name}", f"be absent: {reason}")
    return Transcription(model=model, language=given.language, prompt=given.prompt)


def _refused(field: str, must: str) -> BadRequest:
    name = f"session.audio.{field}"
    return BadRequest(name, f"{name} must {must}")
