"""A `FakeEngine` that hears: a recording is text, two seconds of it between one bar and the next."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import contextmanager

from tests.doubles.fake_engine import FakeEngine, make_config
from weft.core.checks.validate import validate_params
from weft.core.values.media import SpeechConfig
from weft.core.values.speech import ClipOutput, Recording, Speech
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)

CLIP_S = 2.0
FIRST_TIMESTAMP_ID = 300
PROMPT = [1, 2, 3]


class FakeSpeechEngine(FakeEngine):
    """Every byte of a clip is a token; one in capitals is cut. `speeches` are those that came."""

    def __init__(self, **speech) -> None:
        config = {"first_timestamp_id": FIRST_TIMESTAMP_ID, **speech}
        super().__init__(make_config(speech=SpeechConfig(**config)))
        self.speeches: list[tuple[Speech, SamplingParams, RequestOptions]] = []

    async def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Tokens one by one, or all at once."""
        validate_params(params, self.info.limits)
        self.speeches.append((speech, params, options))
        clips = speech.data.split(b"|")
        recording = Recording(
            duration_s=CLIP_S * len(clips) - 0.5,
            language=speech.language or "en",
            separator=" ",
            num_audio_tokens=100,
        )
        with self._notifying(), self._opened(options.request_id):
            await self._notify()
            for number, clip in enumerate(clips):
                tokens = list(clip)
                if speech.has_timestamps:
                    tokens = [FIRST_TIMESTAMP_ID, *tokens, FIRST_TIMESTAMP_ID + 50]
                is_streamed = params.output_kind is OutputKind.DELTA
                for token in tokens if is_streamed else ():
                    await self._may_step(options.request_id)
                    yield self._heard(recording, number, [token])
                rest = [] if is_streamed else tokens
                yield self._heard(recording, number, rest, is_last=True, is_cut=clip.isupper())

    @contextmanager
    def _notifying(self):
        try:
            yield
        finally:
            asyncio.ensure_future(self._notify())  # noqa: RUF006 - wakes tests, nothing else

    @staticmethod
    def _heard(
        recording, number, tokens, *, is_last: bool = False, is_cut: bool = False
    ) -> ClipOutput:
        answer = CompletionOutput(
            index=0,
            text=bytes(token for token in tokens if token < 256).decode(),
            token_ids=tokens,
            logprobs=[{token: Logprob(logprob=-0.5, rank=1)} for token in tokens],
            finish_reason=(
                None if not is_last else FinishReason.LENGTH if is_cut else FinishReason.STOP
            ),
        )
        output = RequestOutput(
            request_id="r", prompt=None, prompt_token_ids=PROMPT, outputs=[answer],
            is_finished=is_last,
        )  # fmt: skip
        start_s = CLIP_S * number
        end_s = min(start_s + CLIP_S, recording.duration_s)
        return ClipOutput(
            recording=recording, clip=number, output=output, start_s=start_s, end_s=end_s,
            is_last=end_s == recording.duration_s,
        )  # fmt: skip
