"""Converts recordings to prompts of vLLM's engine, one per clip. Threads decode a limited number of recordings at
once.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec

from weft.core.aio.merged import merged
from weft.core.aio.tasks import in_place
from weft.core.checks.validate import Limits
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest
from weft.core.values.prompts import TokensPrompt
from weft.core.values.speech import ClipOutput, Recording, Speech
from weft.core.values.types import (
    OutputKind,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer
from weft.vllm.convert.errors import decoding, translated
from weft.vllm.speech_model import SpeechModel, prompt_token_ids

# Maximum number of recordings decoded at the same time, each up to VLLM_MAX_AUDIO_DECODE_BYTES.
_MAX_DECODED_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Clip:
    """A request for one clip, its input for vLLM's engine, and its beginning and end in the recording."""

    request: Request
    prompt: Any
    times_s: tuple[float, float]
    clean: Callable[[str, bool], str] = field(repr=False)

    def cleaned(self, output: RequestOutput) -> RequestOutput:
        """Returns the output with its text cleaned."""
        answers = [
            msgspec.structs.replace(answer, text=self.clean(answer.text, output.is_finished))
            for answer in output.outputs
        ]
        return msgspec.structs.replace(output, outputs=answers)


class SpeechReader:
    """Reader of recordings for one engine."""

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        tokenizer: Tokenizer,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        # The prompts that the model's class makes already contain placeholders of audio.
        facts = msgspec.structs.replace(config.model_config, media=None)
        bare = msgspec.structs.replace(config, model_config=facts)
        self._inputs = InputProcessor(bare, tokenizer, limits=limits, clock=clock)
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    async def read(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> tuple[Recording, list[Clip]]:
        """Returns a recording's data and its checked clips. The language is detected unless the request sets it."""
        # Parameters are checked before the recording is decoded; one token stands for its prompts.
        await self._inputs.prepare(TokensPrompt(prompt_token_ids=[0]), params, options)
        if params.n > 1:
            raise BadRequest("n", f"n must be 1: a recording has one answer, got {params.n}")
        if len(speech.data) > self._model.max_bytes:
            raise BadRequest("file", f"file: at most {self._model.max_bytes} bytes are allowed")
        self._model.check(speech)
        waves, duration_s = await in_place(
            self._threads, partial(asyncio.to_thread, self._decode, speech)
        )
        with translated("file"):
            language = speech.language or await self._model.detect_language(
                waves[0], speech.task, options.request_id
            )
            prompts = await self._model.prompts(waves, speech, language)
        seconds = (self._model.seconds(wave, speech.task) for wave in waves[:-1])
        starts_s = list(accumulate(seconds, initial=0.0))
        recording = Recording(
            duration_s=duration_s,
            language=language,
            separator=self._model.separator(language),
            num_audio_tokens=self._model.num_audio_tokens(duration_s, speech.task),
        )
        ends_s = [*starts_s[1:], duration_s]
        clips = [
            await self._clip(prompt, (starts_s[i], ends_s[i]), i, params, options)
            for i, prompt in enumerate(prompts)
        ]
        return recording, clips

    async def _clip(
        self,
        prompt: Any,
        times_s: tuple[float, float],
        number: int,
        params: SamplingParams,
        options: RequestOptions,
    ) -> Clip:
        options = msgspec.structs.replace(options, request_id=f"{options.request_id}-{number}")
        given = TokensPrompt(prompt_token_ids=prompt_token_ids(prompt))
        request = await self._inputs.prepare(given, params, options)
        is_streamed = params.output_kind is OutputKind.DELTA
        return Clip(request, prompt, times_s, self._model.cleaner(is_streamed=is_streamed))

    def _decode(self, speech: Speech) -> tuple[list[Any], float]:
        with decoding("file"):
            return self._model.decode(speech)


def output_of(
    recording: Recording, clips: Sequence[Clip], number: int, output: RequestOutput
) -> ClipOutput:
    """Returns a clip's output, with the clip's place in the recording."""
    start_s, end_s = clips[number].times_s
    return ClipOutput(
        recording=recording,
        clip=number,
        output=output,
        start_s=start_s,
        end_s=end_s,
        is_last=number == len(clips) - 1,
    )


async def in_order(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yields the outputs of all clips in the order of the clips. The clips run at the same time; outputs of a later
    clip wait until the earlier clips have finished.
    """
    held: list[deque[RequestOutput]] = [deque() for _ in streams]
    current = 0
    async with aclosing(merged(streams)) as outputs:
        async for position, output in outputs:
            held[position].append(output)
            while current < len(held) and held[current]:
                first = held[current].popleft()
                yield current, first
                current += first.is_finished
