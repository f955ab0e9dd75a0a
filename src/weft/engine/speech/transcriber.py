"""`Transcriber`: a recording to text, window by window, as Whisper's authors and most programs do it.

A window begins where the last whole segment of the one before it ended, and what was said before is in its prompt.
An answer that repeats itself or is improbable is made again at higher temperatures. The keys and values of a window
stay cached in the engine between these requests.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import msgspec

from weft.core.aio.tasks import in_place
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, Unavailable
from weft.core.values.media import Owner, media_salt
from weft.core.values.pictures import PlacedItem, SoundsConfig
from weft.core.values.prompts import TokensPrompt
from weft.core.values.speech import ClipOutput, Recording, Speech
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    OutputKind,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.engine.speech.openings import check_speech, opening, rules_of
from weft.engine.speech.windows import Transcript, Window, read_window, text_of
from weft.media.sounds.log_mel import HOP, log_mel
from weft.media.sounds.recordings import RATE, decode_sound
from weft.media.sounds.resample import Wave
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer

_MAX_DECODED_AT_ONCE = 2  # recordings, each up to the limits of `decode_sound`
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# After an answer at a higher temperature, what was said before is no prompt: it may repeat itself.
_MOST_TEMPERATURE_OF_PROMPT = 0.5
# A window moves by a part of itself at least, so that a recording has a limited number of them.
_LEAST_ADVANCE = 1 / 30
_EVERY_TOKEN = 1 << 30  # tokens of a sound: all of the prompt and of the answer attend to it

Run = Callable[[Request], AsyncGenerator[RequestOutput, None]]


@dataclass(slots=True, kw_only=True)
class _Listening:
    """A recording that is being transcribed."""

    speech: Speech
    params: SamplingParams
    options: RequestOptions
    wave: Wave
    language: str | None
    said: list[int] = field(default_factory=list)  # tokens for the next prompt
    num_requests: int = 0


class Transcriber:
    """Transcribes for one engine client, whose `run` it calls."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        run: Run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.sounds_config is not None, "the model takes sounds"
        self._config: SoundsConfig = config.sounds_config
        self._tokens = self._config.tokens
        self._max_len = config.model_config.max_model_len
        self._rules = rules_of(self._tokens)
        self._tokenizer = tokenizer
        self._run = run
        bare = msgspec.structs.replace(config, sounds_config=None)
        self._inputs = InputProcessor(bare, tokenizer, clock=clock)
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    async def run(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Yields one output for each window; see `EngineClient.run_speech`."""
        # Parameters are checked before the recording is decoded.
        await self._inputs.prepare(self._prompt([self._tokens.start]), params, options)
        if params.n > 1:
            raise BadRequest("n", f"n must be 1: a recording has one answer, got {params.n}")
        check_speech(speech, self._tokens)
        wave = await in_place(self._threads, partial(asyncio.to_thread, decode_sound, speech.data))
        language = speech.language or (None if self._tokens.languages else "en")
        listening = _Listening(
            speech=speech, params=params, options=options, wave=wave, language=language
        )
        if speech.prompt:
            listening.said = await asyncio.to_thread(self._encode, speech.prompt)
        async with aclosing(self._clips(listening)) as clips:
            async for clip in clips:
                yield clip

    async def _clips(self, listening: _Listening) -> AsyncGenerator[ClipOutput, None]:
        wave, number, start = listening.wave, 0, 0
        while start < len(wave):
            piece = wave[start : start + self._config.num_columns * HOP]
            transcript = await self._hear(listening, piece)
            length_s = len(piece) / RATE
            window = read_window(transcript, self._tokens, length_s, self._decode)
            self._remember(listening, transcript, window)
            least_s = self._config.num_columns * HOP / RATE * _LEAST_ADVANCE
            end = start + round(min(max(window.advance_s, least_s), length_s) * RATE)
            yield ClipOutput(
                recording=self._recording(listening),
                clip=number,
                output=self._output(listening, transcript, window, is_first=number == 0),
                start_s=start / RATE,
                end_s=(start + len(piece)) / RATE,
                is_last=end >= len(wave),
                temperature=transcript.temperature,
                no_speech_prob=transcript.no_speech_prob,
            )
            start, number = end, number + 1

    def _recording(self, listening: _Listening) -> Recording:
        duration_s = len(listening.wave) / RATE
        return Recording(
            duration_s=duration_s,
            language=listening.language,
            separator="",  # a text begins with a space where its language has one
            num_audio_tokens=math.ceil(duration_s * RATE / (2 * HOP)),
        )

    # -- a window -----------------------------------------------------------------------------

    async def _hear(self, listening: _Listening, piece: Wave) -> Transcript:
        """Returns the best answer for a window."""
        item = await asyncio.to_thread(self._item, piece, listening.options.media_owner)
        no_speech_prob = await self._probe(listening, item)
        given = listening.params.temperature
        transcript = None
        for temperature in (given,) if given else _TEMPERATURES:
            transcript = await self._transcribe(listening, item, temperature, no_speech_prob)
            if not transcript.has_failed:
                break
        assert transcript is not None
        return transcript

    def _item(self, piece: Wave, owner: Owner | None) -> PlacedItem:
        columns = log_mel(piece, self._config.num_mels, self._config.num_columns).tobytes()
        salt = media_salt(owner, cache_salt=None) or ""
        return PlacedItem(
            start=0,
            num_tokens=_EVERY_TOKEN,
            modality="audio",
            hash=hashlib.sha256(salt.encode() + columns).hexdigest(),
            runs=[],
            tiles=[],
            columns=columns,
        )

    async def _probe(self, listening: _Listening, item: PlacedItem) -> float:
        """Returns the probability that nothing is said; also detects the language, unless it is known."""
        tokens = self._tokens
        prompt = opening(tokens, listening.said, None, None, self._room)
        wanted = [tokens.no_speech, *tokens.languages.values()]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprob_token_ids=wanted,
            logprobs=len(wanted),
            output_kind=OutputKind.FINAL_ONLY,
        )
        plain = SamplingParams(temperature=0.0, max_tokens=1)
        request = await self._request(listening, prompt, plain, item)
        output = await self._final(msgspec.structs.replace(request, params=params))
        [row] = output.outputs[0].logprobs or ()
        found = {token: row[token].logprob for token in wanted}
        if listening.language is None:
            languages = tokens.languages
            listening.language = max(languages, key=lambda code: found[languages[code]])
        return math.exp(found[tokens.no_speech])

    async def _transcribe(
        self, listening: _Listening, item: PlacedItem, temperature: float, no_speech_prob: float
    ) -> Transcript:
        task, language = listening.speech.task, listening.language
        prompt = opening(self._tokens, listening.said, task, language, self._room)
        most = min(self._max_len // 2, self._max_len - len(prompt))
        given = listening.params
        params = msgspec.structs.replace(
            given,
            temperature=temperature,
            seed=given.seed or 0,
            max_tokens=min(most, given.max_tokens or most),
            logprobs=0,
            output_kind=OutputKind.FINAL_ONLY,
        )
        item = msgspec.structs.replace(item, rules=self._rules)
        output = await self._final(await self._request(listening, prompt, params, item))
        return self._transcript_of(output.outputs[0], temperature, no_speech_prob)

    def _transcript_of(
        self, answer: CompletionOutput, temperature: float, no_speech_prob: float
    ) -> Transcript:
        ids, rows = list(answer.token_ids), list(answer.logprobs or ())
        total = sum(row[token].logprob for token, row in zip(ids, rows, strict=True))
        average = total / max(1, len(ids))
        if ids and ids[-1] == self._tokens.end:
            ids.pop()
            rows.pop()
        return Transcript(
            token_ids=ids,
            logprobs=rows,
            temperature=temperature,
            no_speech_prob=no_speech_prob,
            finish_reason=answer.finish_reason,
            average=average,
            text=self._decode(text_of(ids, self._tokens)),
        )

    def _remember(self, listening: _Listening, transcript: Transcript, window: Window) -> None:
        """Keeps what was said for the next window's prompt."""
        if transcript.temperature > _MOST_TEMPERATURE_OF_PROMPT:
            listening.said = []
            return
        for span in window.segments:
            listening.said += transcript.token_ids[span]
        del listening.said[: -self._max_len]

    def _output(
        self, listening: _Listening, transcript: Transcript, window: Window, *, is_first: bool
    ) -> RequestOutput:
        ids = [token for span in window.segments for token in transcript.token_ids[span]]
        text = self._decode(text_of(ids, self._tokens))
        answer = CompletionOutput(
            index=0,
            text=text.lstrip() if is_first else text,
            token_ids=ids,
            logprobs=[row for span in window.segments for row in transcript.logprobs[span]],
            finish_reason=transcript.finish_reason,
        )
        return RequestOutput(
            request_id=listening.options.request_id,
            prompt=None,
            prompt_token_ids=[],
            outputs=[answer],
            is_finished=True,
        )

    # -- requests -----------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Number of tokens of what was said before that a prompt may have."""
        return self._max_len // 2 - 1

    async def _request(
        self, listening: _Listening, prompt: list[int], params: SamplingParams, item: PlacedItem
    ) -> Request:
        name = f"{listening.options.request_id}-{listening.num_requests}"
        listening.num_requests += 1
        options = msgspec.structs.replace(listening.options, request_id=name)
        request = await self._inputs.prepare(self._prompt(prompt), params, options)
        return msgspec.structs.replace(request, items=[item])

    async def _final(self, request: Request) -> RequestOutput:
        final = None
        async with aclosing(self._run(request)) as outputs:
            async for output in outputs:
                final = output
        assert final is not None, "every request has a last output"
        if final.outputs[0].finish_reason is FinishReason.ABORT:
            raise Unavailable("the engine ended the request")
        return final

    @staticmethod
    def _prompt(token_ids: list[int]) -> TokensPrompt:
        return TokensPrompt(prompt_token_ids=token_ids)

    def _encode(self, prompt: str) -> list[int]:
        return text_of(
            self._tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False), self._tokens
        )

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids)
