"""GET /v1/responses: a WebSocket whose client asks for responses one after the other, or several in lanes."""

import asyncio
import logging
import re
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.errors import BadRequest, Overloaded, WeftError
from weft.schema.response_events import StreamEvent
from weft.schema.responses import ResponseCreateEvent, ResponseSteerEvent
from weft.web.http.body import ClientDisconnected, decode_body
from weft.web.http.connections.socket_sessions import (
    DEADLINE,
    Inbox,
    SessionCounter,
    SessionLimits,
    SessionOver,
    SessionSeries,
    refuse_plain,
    to_request,
)
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import Call, Dialect, Endpoint
from weft.web.http.problem import HttpError, to_problem
from weft.web.inference.call import to_model_call
from weft.web.response_sockets.lanes import Lane, LatestResponses
from weft.web.responses.create import Creation
from weft.web.responses.request import beyond_api
from weft.web.responses.runs import Run

log = logging.getLogger("weft.web")

_PATH = "/v1/responses"
_CREATE, _STEER = "response.create", "response.steer"
_MAX_RUNNING, _MAX_LANES = 16, 32
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
# How an event is checked: as the body of POST /v1/responses, with the fields of the event.
_EVENT: Final = Endpoint(
    method="POST",
    path=_PATH,
    handler=refuse_plain,
    summary="",
    body=ResponseCreateEvent,
    deviations=beyond_api,
)


class EventHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an event that are read first: its type decides about the others."""

    type: str
    stream_id: Any = None


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error of a request, or of the session."""

    status: int
    error: dict[str, Any]
    stream_id: str | UnsetType = UNSET


class SteerFailed(msgspec.Struct, frozen=True, kw_only=True, tag="response.steer.failed"):
    """The answer to every event that would steer a response."""

    sequence_number: int = 0
    error: dict[str, str]
    steer: dict[str, Any]
    stream_id: str | UnsetType = UNSET


class ResponsesSession:
    """A session of one client. Requests of a lane are answered in order; lanes are answered at the same time."""

    def __init__(
        self, call: Call, creation: Creation, socket: Socket, limits: SessionLimits
    ) -> None:
        self._call = call
        self._creation = creation
        self._socket = socket
        self._limits = limits
        self._lanes: dict[str | None, Lane] = {None: Lane(None)}
        self._latest = LatestResponses(limits.max_chars)
        self._num_waiting_chars = 0
        self._running = asyncio.Semaphore(_MAX_RUNNING)
        self._writing = asyncio.Lock()
        self._inbox = Inbox(socket, limits, lambda: any(map(_is_busy, self._lanes.values())))

    async def serve(self) -> None:
        """Serves the session until its client leaves or a limit ends it."""
        try:
            while (message := await self._inbox.next()) is not None:
                await self._take(message.encode())
        except SessionOver as over:
            if over.code == DEADLINE:
                code = "websocket_connection_limit_reached"
                await self._send_error(HttpError(400, str(over), code=code), None)
            await self._socket.close(over.code, str(over))
        finally:
            await self._stop()

    async def _take(self, data: bytes) -> None:
        stream_id: str | None = None
        try:
            head: EventHead = decode_body(data, EventHead)
            stream_id = _checked_id(head.stream_id)
            if head.type == _CREATE:
                event = await self._socket.decode(data, _EVENT)
                self._enqueue(self._lane(stream_id), _checked(event), len(data))
            elif head.type == _STEER:
                await self._refuse_steering(decode_body(data, ResponseSteerEvent))
            else:
                raise BadRequest(
                    "type", f"type must be {_CREATE} or {_STEER}, got {head.type[:60]!a}"
                )
        except (WeftError, HttpError) as error:
            await self._send_error(error, stream_id)

    def _lane(self, stream_id: str | None) -> Lane:
        if stream_id not in self._lanes:
            if len(self._lanes) > _MAX_LANES:
                raise HttpError(
                    400,
                    f"a session has at most {_MAX_LANES} values of stream_id; open another one",
                    code="websocket_stream_limit_reached",
                    parameter="stream_id",
                )
            self._lanes[stream_id] = Lane(stream_id)
        return self._lanes[stream_id]

    def _enqueue(self, lane: Lane, event: ResponseCreateEvent, num_chars: int) -> None:
        if self._num_waiting_chars + num_chars > self._limits.max_chars:
            raise Overloaded(
                f"{self._num_waiting_chars} characters of requests wait in this session; wait for their responses"
            )
        self._num_waiting_chars += num_chars
        lane.waiting.append((event, num_chars))
        if not lane.is_busy:
            lane.task = asyncio.create_task(self._work(lane))

    async def _work(self, lane: Lane) -> None:
        """Answers the waiting requests of a lane."""
        try:
            while lane.waiting:
                await self._answer_next(lane)
        except ClientDisconnected:
            pass  # the session ends

    async def _answer_next(self, lane: Lane) -> None:
        event, num_chars = lane.waiting[0]
        try:
            async with self._running:
                await self._answer(lane, event)
        except ClientDisconnected:
            raise
        except Exception as error:
            self._latest.drop(lane, event.previous_response_id)
            if not isinstance(error, WeftError | HttpError):
                log.error("a request of session %s failed", self._call.request_id, exc_info=error)
            await self._send_error(error, lane.stream_id)
        finally:
            lane.waiting.popleft()
            self._num_waiting_chars -= num_chars

    async def _answer(self, lane: Lane, event: ResponseCreateEvent) -> None:
        is_warmup = event.generate is False
        call = await to_model_call(to_request(self._call, body=event))
        run = await self._creation.run_in_session(
            call, event, self._latest.by_id, is_warmup=is_warmup
        )
        lane.response_id = run.id
        try:
            async with aclosing(self._creation.events(run, event)) as events:
                async for made in events:
                    if run.is_over:
                        self._keep(lane, run)
                    await self._write(_encoded(made, lane))
        finally:
            lane.response_id = None

    def _keep(self, lane: Lane, run: Run) -> None:
        if run.is_stored:
            self._latest.drop(lane)
        elif run.response.status in ("completed", "incomplete"):
            self._latest.keep(lane, run.to_stored())

    async def _refuse_steering(self, event: ResponseSteerEvent) -> None:
        target = event.previous_response_id
        lane = next((one for one in self._lanes.values() if one.response_id == target), None)
        stream_id = None if lane is None else lane.stream_id
        failed = SteerFailed(
            error={
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "responses cannot be steered; send response.create after the response",
            },
            steer={"previous_response_id": target, "input": event.input},
            stream_id=UNSET if stream_id is None else stream_id,
        )
        await self._write(msgspec.json.encode(failed))

    async def _send_error(self, error: Exception, stream_id: str | None) -> None:
        problem = to_problem(error, self._call.request_id)
        body = msgspec.json.decode(problem.body(Dialect.OPENAI, self._call.label))
        headers = {"headers": dict(problem.headers)} if problem.headers else {}
        event = ErrorEvent(
            status=problem.status(Dialect.OPENAI),
            error=body["error"] | headers,
            stream_id=UNSET if stream_id is None else stream_id,
        )
        await self._write(msgspec.json.encode(event))

    async def _write(self, data: bytes) -> None:
        async with self._writing:  # lanes write beside each other
            await self._socket.send(data)

    async def _stop(self) -> None:
        """Ends all responses that are being made."""
        tasks = {lane.task for lane in self._lanes.values() if lane.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def responses_socket(
    creation: Creation, limits: SessionLimits, series: SessionSeries | None = None
) -> Endpoint:
    """The endpoint of a server's sessions, which are counted in `series`."""
    sessions = SessionCounter("response", limits, _PATH, series)

    async def serve(call: Call, socket: Socket) -> None:
        if call.served is None:
            raise BadRequest("model", "sessions are not supported by a server of several models")
        with sessions.counted():
            await socket.accept()
            await ResponsesSession(call, creation, socket, limits).serve()

    return Endpoint(
        method="GET",
        path=_PATH,
        handler=refuse_plain,
        socket=serve,
        summary="A session over a WebSocket: requests for responses in, their events out.",
    )


def _is_busy(lane: Lane) -> bool:
    return lane.is_busy


def _checked_id(given: Any) -> str | None:
    if given is None or (isinstance(given, str) and _STREAM_ID.fullmatch(given)):
        return given
    raise HttpError(
        400,
        "stream_id must have 1 to 256 letters, digits, '_', '-' and '.'",
        code="invalid_stream_id",
        parameter="stream_id",
    )


def _checked(event: ResponseCreateEvent) -> ResponseCreateEvent:
    """The event as a request that is streamed."""
    if event.background:
        raise BadRequest(
            "background", "background needs POST /v1/responses: a session is in the foreground"
        )
    if event.stream is False:
        raise BadRequest("stream", "stream must be absent: a session streams all responses")
    return msgspec.structs.replace(event, stream=True, background=None)


def _encoded(event: StreamEvent, lane: Lane) -> bytes:
    data = msgspec.json.encode(event)
    if lane.stream_id is None:
        return data
    return b'%b,"stream_id":%b}' % (data[:-1], msgspec.json.encode(lane.stream_id))
