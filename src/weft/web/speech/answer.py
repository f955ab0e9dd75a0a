"""/v1/audio/transcriptions and translations: converts a form to a recording, and the engine's outputs to an answer."""

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain

import msgspec
from msgspec import UNSET
from starlette.responses import PlainTextResponse

from weft.core.aio.scores import write_scores
from weft.core.values.media import SpeechConfig
from weft.core.values.speech import ClipOutput, Recording, SpeechTask
from weft.core.values.types import FinishReason
from weft.schema.sampling import StreamOptions
from weft.schema.speech import (
    SpeechAnswer,
    SpeechChunk,
    SpeechChunkChoice,
    SpeechDelta,
    SpeechForm,
    SpeechSegment,
    SpeechUsage,
)
from weft.schema.usage import Usage
from weft.web.http.endpoint import Answer, Events
from weft.web.http.sse import DONE, data_event
from weft.web.inference.call import Heading, ModelCall, usage_of_stream
from weft.web.speech.form import TIMED, VERBOSE, check_form, to_params, to_speech
from weft.web.speech.segments import SegmentWriter
from weft.web.speech.subtitles import to_srt, to_vtt

_PREFIX = {SpeechTask.TRANSCRIBE: "trsc", SpeechTask.TRANSLATE: "trsl"}
_SUBTITLES = {"srt": to_srt, "vtt": to_vtt}
_OBJECT = {
    SpeechTask.TRANSCRIBE: "transcription.chunk",
    SpeechTask.TRANSLATE: "translation.chunk",
}


async def answer_speech(task: SpeechTask, call: ModelCall) -> Answer:
    """The handler."""
    form: SpeechForm = call.body
    client = call.served.client
    model = client.model_config.speech
    assert model is not None, "the endpoint admits no other"
    check_form(form, model)
    params = to_params(form, client.model_config.default_sampling_params)
    outputs = client.run_speech(to_speech(form, task), params, call.request_options())
    if form.stream:
        has_usage, has_running_usage = usage_of_stream(
            call.served.options,
            StreamOptions(
                include_usage=form.stream_include_usage,
                continuous_usage_stats=form.stream_continuous_usage_stats,
            ),
        )
        writer = ChunkWriter(
            head=call.heading(_PREFIX[task]),
            name=_OBJECT[task],
            has_usage=has_usage,
            has_running_usage=has_running_usage,
        )
        return Events(_events(outputs, writer))
    async with aclosing(outputs):
        clips = [clip async for clip in outputs]
    if form.response_format in TIMED:
        by_clip = await _segments_of(call, clips, model)
        if form.response_format == VERBOSE:
            return _verbose(task, clips[0].recording, by_clip)
        return _SUBTITLES[form.response_format](list(chain.from_iterable(by_clip)))
    text = _join([clip.output.outputs[0].text for clip in clips], clips[0].recording)
    if form.response_format == "text":
        return PlainTextResponse(text)
    is_counted = task is SpeechTask.TRANSCRIBE  # in OpenAI's API, a translation has only a text
    return SpeechAnswer(text=text, usage=_usage(clips[0].recording) if is_counted else UNSET)


def _join(texts: list[str], recording: Recording) -> str:
    return recording.separator.join(texts)


def _usage(recording: Recording) -> SpeechUsage:
    return SpeechUsage(seconds=math.ceil(recording.duration_s))


async def _segments_of(
    call: ModelCall, clips: list[ClipOutput], model: SpeechConfig
) -> list[list[SpeechSegment]]:
    """The segments of each clip."""
    assert model.first_timestamp_id is not None, "the form was checked"
    writer = SegmentWriter(
        decode=call.served.tokenizer.decode,
        first_timestamp_id=model.first_timestamp_id,
        eos_token_ids=call.served.client.model_config.eos_token_ids,
        temperature=call.body.temperature or 0.0,
    )
    num_rows = sum(len(clip.output.outputs[0].token_ids) for clip in clips)
    return await write_scores(num_rows, partial(_segments, writer, clips))


def _verbose(
    task: SpeechTask, recording: Recording, by_clip: list[list[SpeechSegment]]
) -> SpeechAnswer:
    """The answer with timestamps of segments."""
    texts = ["".join(one.text for one in each) for each in by_clip]
    return SpeechAnswer(
        text=_join(texts, recording).strip(),
        usage=_usage(recording) if task is SpeechTask.TRANSCRIBE else UNSET,
        task=task.value,
        language=recording.language,
        duration=recording.duration_s,
        segments=list(chain.from_iterable(by_clip)),
    )


def _segments(writer: SegmentWriter, clips: list[ClipOutput]) -> list[list[SpeechSegment]]:
    made: list[list[SpeechSegment]] = []
    for clip in clips:
        made.append(list(writer.segments(clip, sum(map(len, made)))))
    return made


@dataclass(slots=True, kw_only=True)
class ChunkWriter:
    """Writes the chunks of a stream; usage counts the tokens of all clips so far."""

    head: Heading
    name: str
    has_usage: bool
    has_running_usage: bool
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    _current: int | None = None
    _has_text: bool = False  # of the current clip
    _is_cut: bool = False

    def chunks(self, clip: ClipOutput) -> Iterator[SpeechChunk]:
        """Yields the chunks of an output: text, or the end of a clip."""
        self._count(clip)
        (answer,) = clip.output.outputs
        text = answer.text
        if text and clip.clip and not self._has_text:
            text = clip.recording.separator + text
        self._has_text = self._has_text or bool(answer.text)
        self._is_cut = self._is_cut or answer.finish_reason is FinishReason.LENGTH
        if clip.is_finished:
            # If one clip was cut off, the whole text counts as cut off.
            reason = FinishReason.LENGTH if self._is_cut else answer.finish_reason
            yield self._chunk(
                SpeechChunkChoice(
                    delta=SpeechDelta(content=text),
                    finish_reason=None if reason is None else reason.value,
                    stop_reason=answer.stop_reason,
                )
            )
        elif text:
            yield self._chunk(SpeechChunkChoice(delta=SpeechDelta(content=text)))

    def last(self) -> SpeechChunk:
        """The usage."""
        return msgspec.structs.replace(self._chunk(), usage=self._tokens())

    def _count(self, clip: ClipOutput) -> None:
        if self._current is None:
            self.num_prompt_tokens += clip.recording.num_audio_tokens
        if self._current != clip.clip:
            self._current, self._has_text = clip.clip, False
            self.num_prompt_tokens += len(clip.output.prompt_token_ids)
        self.num_completion_tokens += len(clip.output.outputs[0].token_ids)

    def _chunk(self, *choices: SpeechChunkChoice) -> SpeechChunk:
        return SpeechChunk(
            id=self.head.id,
            object=self.name,
            created=self.head.created,
            model=self.head.model,
            choices=list(choices),
            usage=self._tokens() if self.has_running_usage else UNSET,
        )

    def _tokens(self) -> Usage:
        total = self.num_prompt_tokens + self.num_completion_tokens
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            total_tokens=total,
        )


async def _events(
    outputs: AsyncGenerator[ClipOutput, None], writer: ChunkWriter
) -> AsyncGenerator[bytes, None]:
    async with aclosing(outputs):
        async for clip in outputs:
            for chunk in writer.chunks(clip):
                yield data_event(chunk)
    if writer.has_usage:
        yield data_event(writer.last())
    yield DONE
