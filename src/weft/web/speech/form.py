"""Converts a form to the engine's input; each field is used, or refused with a reason."""

from collections.abc import Mapping
from typing import Any

from weft.core.errors import BadRequest
from weft.core.values.media import SpeechConfig
from weft.core.values.params import OF_DRAWS
from weft.core.values.speech import MAX_FILE_BYTES, Speech, SpeechTask
from weft.core.values.types import OutputKind, SamplingParams
from weft.schema.speech import SpeechForm, TranscriptionForm
from weft.web.inference.fields import refuse_unsupported

VERBOSE = "verbose_json"
SUBTITLES = ("srt", "vtt")
TIMED = (VERBOSE, *SUBTITLES)  # formats with the times of segments
FORMATS = ("json", "text", *TIMED)
_SPEAKERS = "this server does not distinguish speakers"
_NO_BEAMS = "beam search is for chat and text completions"
# By name: the values that have no effect here, and why any other value is refused.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "chunking_strategy": (("auto",), "a long recording is always cut at quiet places"),
    "include[]": (([],), "log-probabilities are supported only with verbose_json, as averages"),
    "include_stop_str_in_output": ((False,), "stop strings are not supported"),
    "known_speaker_names[]": (([],), _SPEAKERS),
    "known_speaker_references[]": (([],), _SPEAKERS),
    "length_penalty": ((1.0,), _NO_BEAMS),
    "n": ((1,), _NO_BEAMS),
    "use_beam_search": ((False,), _NO_BEAMS),
    "vllm_xargs": (("{}",), "this engine has no further arguments"),
    "watermarking": ((False,), "answers have no watermark"),
}
_REFUSED_FORMATS = {"diarized_json": _SPEAKERS}


def check_form(form: SpeechForm, model: SpeechConfig) -> None:
    """Refuses unsupported features, and fields that contradict each other."""
    refuse_unsupported(form, REFUSED)
    _check_format(form, model)
    if not form.file:
        raise BadRequest("file", "file is empty")
    if len(form.file) > MAX_FILE_BYTES:
        raise BadRequest(
            "file", f"file: at most {MAX_FILE_BYTES} bytes are taken, got {len(form.file)}"
        )
    for name in ("stream_include_usage", "stream_continuous_usage_stats"):
        if getattr(form, name) and not form.stream:
            raise BadRequest(name, f"{name} needs stream to be true")
    if isinstance(form, TranscriptionForm):
        _check_granularities(form)


def _check_format(form: SpeechForm, model: SpeechConfig) -> None:
    chosen = form.response_format
    if chosen is None:
        return
    if chosen not in FORMATS:
        reason = _REFUSED_FORMATS.get(chosen)
        raise BadRequest(
            "response_format",
            f"response_format must be one of {', '.join(FORMATS)}, got {chosen[:40]!a}"
            + (f": {reason}" if reason else ""),
            chosen,
        )
    if chosen not in TIMED:
        return
    if form.stream:
        raise BadRequest("response_format", f"{chosen} does not go with stream")
    if model.first_timestamp_id is None:
        raise BadRequest(
            "response_format",
            f"{chosen} is not supported by this model: the model gives no timestamps",
        )


def _check_granularities(form: TranscriptionForm) -> None:
    name = "timestamp_granularities[]"
    for each in form.timestamp_granularities:
        if each != "segment":
            raise BadRequest(
                name,
                f"{name} must be segment, got {each[:40]!a}: timestamps of words are not supported",
            )
    if form.timestamp_granularities and form.response_format != VERBOSE:
        raise BadRequest(name, f"{name} needs response_format to be {VERBOSE}")


def to_speech(form: SpeechForm, task: SpeechTask) -> Speech:
    """The recording, and the task."""
    return Speech(
        task=task,
        data=form.file,
        language=form.language or None,
        to_language=form.to_language or None,
        prompt=form.prompt or "",
        hotwords=form.hotwords or None,
        has_timestamps=form.response_format in TIMED,
    )


def to_params(form: SpeechForm, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Returns the sampling parameters of each clip: greedy unless a temperature is given, whatever the model's
    defaults are.
    """
    given = {one.name: getattr(form, one.name) for one in OF_DRAWS}
    given = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(
        **{**defaults, "temperature": 0.0, **given},
        max_tokens=form.max_completion_tokens,
        logprobs=0 if form.response_format in TIMED else None,
        output_kind=OutputKind.DELTA if form.stream else OutputKind.FINAL_ONLY,
    )
