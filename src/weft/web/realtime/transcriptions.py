"""Transcribes the sounds of one session, one after the other, as /v1/audio/transcriptions does."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from weft.core.errors import Overloaded, WeftError
from weft.core.values.speech import SpeechTask
from weft.schema.speech import TranscriptionForm
from weft.web.http.body import ClientDisconnected
from weft.web.http.connections.socket_sessions import to_request
from weft.web.http.endpoint import Dialect
from weft.web.http.problem import HttpError, to_problem
from weft.web.inference.call import ModelCall
from weft.web.realtime.sounds import SoundAccount, wav_file
from weft.web.realtime.transcription_settings import Transcription
from weft.web.speech.answer import ChunkWriter
from weft.web.speech.form import check_form, to_params, to_speech

log = logging.getLogger("weft.web")

Send = Callable[..., Awaitable[None]]
_EVENT = "conversation.item.input_audio_transcription"


class Transcriptions:
    """The transcriptions of a session. `send` writes an event of a type with fields."""

    def __init__(
        self, call: ModelCall, account: SoundAccount, max_waiting: int, send: Send
    ) -> None:
        self._call = call
        self._account = account
        self._max_waiting = max_waiting
        self._send = send
        self._turn = asyncio.Lock()  # the tasks that wait for it get it in order
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """True while there is something to transcribe."""
        return bool(self._tasks)

    def check_room(self) -> None:
        """Raises `Overloaded` if no more sounds may wait."""
        if len(self._tasks) >= self._max_waiting:
            raise Overloaded(
                f"{len(self._tasks)} sounds wait to be transcribed; wait for their transcripts"
            )

    def start(self, item_id: str, samples: bytes, settings: Transcription) -> None:
        """Transcribes the samples of an item, behind those of the items before it."""
        self._account.add(len(samples), "input_audio_buffer")
        task = asyncio.create_task(self._run(item_id, samples, settings))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ends all transcriptions."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, item_id: str, samples: bytes, settings: Transcription) -> None:
        try:
            async with self._turn:
                await self._transcribe_or_fail(item_id, samples, settings)
        except ClientDisconnected:
            pass  # the session ends
        finally:
            self._account.remove(len(samples))

    async def _transcribe_or_fail(
        self, item_id: str, samples: bytes, settings: Transcription
    ) -> None:
        try:
            await self._transcribe(item_id, samples, settings)
        except ClientDisconnected:
            raise
        except Exception as error:  # the root of a task: a transcript must end
            if not isinstance(error, WeftError | HttpError):
                log.exception("transcription failed, id=%s", self._call.request_id)
            problem = to_problem(error, self._call.request_id)
            body = problem.body(Dialect.OPENAI, self._call.label)
            detail = msgspec.json.decode(body)["error"]
            await self._send(f"{_EVENT}.failed", item_id=item_id, content_index=0, error=detail)

    async def _transcribe(self, item_id: str, samples: bytes, settings: Transcription) -> None:
        call = to_request(self._call)
        client = call.served.client
        model = client.model_config.speech
        assert model is not None, "the settings were checked"
        form = TranscriptionForm(
            file=wav_file(samples),
            language=settings.language,
            prompt=settings.prompt,
            stream=True,
        )
        check_form(form, model)
        params = to_params(form, client.model_config.default_sampling_params)
        speech = to_speech(form, SpeechTask.TRANSCRIBE)
        outputs = client.run_speech(speech, params, call.request_options())
        place = {"item_id": item_id, "content_index": 0}
        writer = ChunkWriter(
            head=call.heading("trsc"), name="", has_usage=False, has_running_usage=False
        )
        texts: list[str] = []
        seconds = 0.0
        async with aclosing(outputs):
            async for clip in outputs:
                seconds = clip.recording.duration_s
                for delta in filter(None, map(_text_of, writer.chunks(clip))):
                    texts.append(delta)
                    await self._send(f"{_EVENT}.delta", **place, delta=delta)
        await self._send(
            f"{_EVENT}.completed",
            **place,
            transcript="".join(texts),
            usage={"type": "duration", "seconds": math.ceil(seconds)},
        )


def _text_of(chunk: Any) -> str:
    text: str = chunk.choices[0].delta.content
    return text
