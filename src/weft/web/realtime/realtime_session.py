"""One realtime session: reads a client's events, and writes those of its responses."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest, WeftError
from weft.core.values.media import MODALITIES, takes
from weft.schema.responses import ResponsesBody
from weft.web.http.body import ClientDisconnected, decode_body, scan_message
from weft.web.http.connections.socket_sessions import (
    Inbox,
    SessionLimits,
    SessionOver,
    to_request,
)
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import Dialect
from weft.web.http.problem import HttpError, to_problem
from weft.web.inference.call import ModelCall
from weft.web.realtime.client_events import (
    ClientEvent,
    ItemCreate,
    ItemNamed,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    SoundAppend,
)
from weft.web.realtime.realtime_events import Event, ResponseEvents, encode, to_event
from weft.web.realtime.session_items import (
    Item,
    SessionItems,
    check_items,
    has_media,
    has_sound,
    item_of_sound,
    to_input,
    to_item,
    without_sounds,
)
from weft.web.realtime.session_settings import Settings, check_transcription
from weft.web.realtime.sounds import SoundAccount, SoundBuffer, SoundRoom
from weft.web.realtime.transcription_settings import (
    Transcription,
    changed_transcription,
    shown_sounds,
)
from weft.web.realtime.transcriptions import Transcriptions
from weft.web.responses.create import Creation
from weft.web.responses.runs import Run

# Types of a session.
CONVERSATION: Final = "realtime"
TRANSCRIPTION: Final = "transcription"
_OF_SPEECH: Final = ("output_audio_buffer.clear", "conversation.item.truncate")
_OF_TRANSCRIPTIONS: Final = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
)
_STATUSES: Final = ("completed", "incomplete", "failed", "cancelled")


class RealtimeSession:
    """A session of one client. Only one response is made at a time; events are handled in order.

    A session of type transcription makes no responses: it transcribes what is committed.
    """

    def __init__(
        self,
        call: ModelCall,
        creation: Creation,
        socket: Socket,
        limits: SessionLimits,
        room: SoundRoom,
        kind: str,
    ) -> None:
        self._call = call
        self._creation = creation
        self._socket = socket
        self._limits = limits
        self._id = new_id("sess")
        self._kind = kind
        self._settings = Settings()
        facts = call.served.client.model_config
        self._takes = [modality for modality in MODALITIES if takes(modality, facts.media)]
        self._can_transcribe = facts.speech is not None
        self._transcription = Transcription(model=call.model) if self._is_transcribing else None
        self._account = SoundAccount(room)
        self._buffer = SoundBuffer(self._account)
        self._transcriptions = Transcriptions(
            call, self._account, room.limits.max_waiting, self._send
        )
        self._last_sound_id: str | None = None  # of a session of type transcription
        self._conversation = SessionItems(limits.max_items, limits.max_chars, self._account)
        self._run: Run | None = None
        self._response: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._inbox = Inbox(
            socket, limits, lambda: self._is_responding or self._transcriptions.is_busy
        )
        self._handlers: Mapping[str, tuple[type[ClientEvent], Callable[[Any], Awaitable[None]]]] = {
            "session.update": (SessionUpdate, self._update),
            "conversation.item.create": (ItemCreate, self._create_item),
            "conversation.item.retrieve": (ItemNamed, self._retrieve_item),
            "conversation.item.delete": (ItemNamed, self._delete_item),
            "response.create": (ResponseCreate, self._create_response),
            "response.cancel": (ResponseCancel, self._cancel_response),
            "input_audio_buffer.append": (SoundAppend, self._append_sound),
            "input_audio_buffer.commit": (ClientEvent, self._commit_sound),
            "input_audio_buffer.clear": (ClientEvent, self._clear_sound),
        }

    async def serve(self) -> None:
        """Serves the session until its client leaves or a limit ends it."""
        await self._send("session.created", session=self._shown())
        try:
            while (message := await self._inbox.next()) is not None:
                await self._take(message)
        except SessionOver as over:
            await self._socket.close(over.code, str(over))
        finally:
            await self._stop_response()
            await self._transcriptions.stop()
            self._account.close()

    async def _take(self, message: str) -> None:
        event_id: str | None = None
        try:
            data = message.encode()
            await scan_message(data)
            event: ClientEvent = decode_body(data, ClientEvent)
            event_id = event.event_id
            kind, handle = self._handler(event.type)
            await handle(decode_body(data, kind))
        except (WeftError, HttpError) as error:
            await self._send_error(error, event_id)

    def _handler(self, kind: str) -> tuple[type[ClientEvent], Callable[[Any], Awaitable[None]]]:
        if kind in _OF_SPEECH:
            raise BadRequest("type", f"{kind} is not supported: this server does not speak")
        allowed = _OF_TRANSCRIPTIONS if self._is_transcribing else tuple(self._handlers)
        if kind not in allowed:
            raise BadRequest(
                "type",
                f"type must be one of {', '.join(allowed)} in this session, got {kind[:60]!a}",
            )
        return self._handlers[kind]

    @property
    def _is_transcribing(self) -> bool:
        return self._kind == TRANSCRIPTION

    # -- session and conversation ---------------------------------------------------------------

    async def _update(self, event: SessionUpdate) -> None:
        fields = event.session
        self._check_kind(fields.type)
        if fields.model not in (None, self._call.model):
            raise BadRequest("session.model", "session.model cannot change during a session")
        settings = self._settings
        if fields.type == TRANSCRIPTION:
            check_transcription(fields)
        else:
            settings = settings.changed(fields, "session")
            settings.to_body([], None)  # raises for tools that no response could have
        transcription = changed_transcription(
            self._transcription,
            fields.audio,
            self._call.model,
            can_transcribe=self._can_transcribe,
        )
        if fields.type == TRANSCRIPTION and transcription is None:
            transcription = Transcription(model=self._call.model)
        self._kind, self._settings, self._transcription = fields.type, settings, transcription
        await self._send("session.updated", session=self._shown())

    def _check_kind(self, kind: str) -> None:
        if kind not in (CONVERSATION, TRANSCRIPTION):
            raise BadRequest(
                "session.type",
                f"session.type must be {CONVERSATION} or {TRANSCRIPTION}, got {kind[:40]!a}",
            )
        if kind == self._kind:
            return
        if not can_be(self._call, kind):
            raise BadRequest("session.type", f"session.type {kind} is not supported by this model")
        if len(self._conversation) or len(self._buffer) or self._last_sound_id is not None:
            raise BadRequest("session.type", "session.type cannot change after the first item")

    async def _create_item(self, event: ItemCreate) -> None:
        item = await to_item(event.item, takes=self._takes)
        await self._add_item(item, event.previous_item_id)

    async def _add_item(self, item: Item, after: str | None = None) -> None:
        before = self._conversation.add(item, after)
        await self._send_item(item, before)

    async def _send_item(self, item: Item, before: str | None) -> None:
        shown = without_sounds(item)
        for verb in ("added", "done"):
            await self._send(f"conversation.item.{verb}", previous_item_id=before, item=shown)

    async def _retrieve_item(self, event: ItemNamed) -> None:
        item = self._conversation.get(event.item_id)
        await self._send("conversation.item.retrieved", item=item)

    async def _delete_item(self, event: ItemNamed) -> None:
        self._conversation.delete(event.item_id)
        await self._send("conversation.item.deleted", item_id=event.item_id)

    # -- sounds ---------------------------------------------------------------------------------

    async def _append_sound(self, event: SoundAppend) -> None:
        self._check_sounds()
        self._buffer.append(event.audio)

    async def _clear_sound(self, _event: ClientEvent) -> None:
        self._buffer.clear()
        await self._send("input_audio_buffer.cleared")

    async def _commit_sound(self, _event: ClientEvent) -> None:
        self._check_sounds()
        self._transcriptions.check_room()
        settings = self._transcription
        samples = self._buffer.take()
        item = item_of_sound(samples)
        if self._is_transcribing:  # the session keeps no items
            before, self._last_sound_id = self._last_sound_id, item["id"]
        else:
            before = self._conversation.add(item)
        await self._send(
            "input_audio_buffer.committed", previous_item_id=before, item_id=item["id"]
        )
        await self._send_item(item, before)
        if settings is not None:
            self._transcriptions.start(item["id"], samples, settings)

    def _check_sounds(self) -> None:
        if not self._is_transcribing and "audio" not in self._takes:
            raise BadRequest("type", "sound is not supported by this model: it takes no sounds")

    # -- responses ------------------------------------------------------------------------------

    @property
    def _is_responding(self) -> bool:
        return self._response is not None and not self._response.done()

    async def _create_response(self, event: ResponseCreate) -> None:
        if self._is_responding:
            raise HttpError(
                409,
                "a response is being made; wait for response.done, or send response.cancel",
                code="conversation_already_has_active_response",
            )
        fields = event.response
        if fields.conversation not in (None, "auto", "none"):
            raise BadRequest("response.conversation", "response.conversation must be auto or none")
        settings = self._settings.changed(fields, "response")
        items = self._conversation.all()
        if fields.input is not None:
            items = await self._own_input(fields.input)
        inputs = [to_input(item) for item in items]
        body = settings.to_body(inputs, fields.metadata, has_media=any(map(has_media, items)))
        run = await self._prepare(body)
        conversation = None if fields.conversation == "none" else self._conversation
        shown = {"max_output_tokens": settings.max_output_tokens}
        events = ResponseEvents(
            conversation, self._conversation.id, shown, has_sounds=any(map(has_sound, items))
        )
        self._run = run
        self._response = asyncio.create_task(self._respond(run, events))

    async def _own_input(self, given: list[Item]) -> list[Item]:
        items = [
            self._conversation.get(str(one.get("id")))
            if one.get("type") == "item_reference"
            else await to_item(one, takes=self._takes)
            for one in given[: self._limits.max_items + 1]
        ]
        if len(items) > self._limits.max_items:
            raise BadRequest(
                "response.input", f"response.input may have {self._limits.max_items} items"
            )
        await check_items(items, "response.input", takes=self._takes)
        return items

    async def _prepare(self, data: bytes) -> Run:
        body: ResponsesBody = decode_body(data, ResponsesBody)
        call = to_request(self._call, body=body)
        return Run(call.served, await self._creation.prepare(call, body))

    async def _respond(self, run: Run, events: ResponseEvents) -> None:
        """Writes a response to its end, or until it is cancelled."""
        try:
            await self._write([events.created(run.response)])
            await self._write_outputs(run, events)
            status = run.response.status
            await self._write(
                [events.done(run.response, status if status in _STATUSES else "failed")]
            )
        except ClientDisconnected:
            pass  # the session ends
        finally:
            run.request.close()

    async def _write_outputs(self, run: Run, events: ResponseEvents) -> None:
        try:
            async with aclosing(run.events()) as made:
                async for one in made:
                    await self._write(events.events(one))
            run.log_error()
        except asyncio.CancelledError:
            for one in run.cancelled():
                await self._write(events.events(one))
        except (WeftError, HttpError) as error:  # the engine did not accept the request
            await self._send_error(error, None)

    async def _cancel_response(self, event: ResponseCancel) -> None:
        run = self._run
        if run is None or not self._is_responding or event.response_id not in (None, run.id):
            raise HttpError(
                400,
                "no such response is being made",
                code="response_cancel_not_active",
                parameter="response_id",
            )
        await self._stop_response()

    async def _stop_response(self) -> None:
        task = self._response
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    # -- events ---------------------------------------------------------------------------------

    def _shown(self) -> dict[str, Any]:
        audio = shown_sounds(self._transcription)
        if self._is_transcribing:
            return {
                "id": self._id,
                "object": "realtime.transcription_session",
                "type": TRANSCRIPTION,
                "audio": audio,
                "include": None,
            }
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": CONVERSATION,
            "model": self._call.model,
            **self._settings.shown(),
            "audio": audio,
        }

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._write([to_event(kind, **fields)])

    async def _write(self, events: Iterable[Event]) -> None:
        async with self._writing:  # a response writes beside the session
            for event in events:
                await self._socket.send(encode(event))

    async def _send_error(self, error: Exception, event_id: str | None) -> None:
        body = to_problem(error, self._call.request_id).body(Dialect.OPENAI, self._call.label)
        detail = msgspec.json.decode(body)["error"]
        await self._send("error", error={**detail, "event_id": event_id})


def can_be(call: ModelCall, kind: str) -> bool:
    """True if a session of this type is supported by the model of the call."""
    speech = call.served.client.model_config.speech
    return speech is not None if kind == TRANSCRIPTION else speech is None or not speech.is_only
