"""`Rpc`: one gRPC call on an HTTP/2 stream: the messages of its client, its responses and its status."""

import asyncio
import logging
from collections import deque
from typing import Any, Final, NoReturn, Protocol

import grpc

from weft.epp.server.http2.framing import (
    Deframer,
    Headers,
    UnreadableMessage,
    framed,
    opening,
    trailers,
)

log = logging.getLogger("weft.epp")

# Bytes of messages that the handler has not read. Beyond these, the stream's window stays closed.
MAX_UNREAD_BYTES: Final = 2**18


class RpcStream(Protocol):
    """The HTTP/2 stream of a call."""

    def send_headers(self, headers: Headers, *, ends: bool) -> None:
        """Sends headers, or trailers that end the response."""

    def send_now(self, data: bytes) -> int:
        """Sends the bytes that the peer's windows allow now; returns their number."""

    async def until_open(self) -> None:
        """Waits until the windows may allow more."""

    def take_back(self, num_bytes: int) -> None:
        """Opens the window of the stream for as many further bytes."""


class Rpc:
    """One call. `read`, `write` and `abort` are those of grpc's `ServicerContext`, so a handler runs in either server.

    Created and used on one event loop.
    """

    __slots__ = (
        "_deframer", "_handler", "_has_opened", "_is_ended", "_is_finished", "_max_send_bytes",
        "_messages", "_num_held", "_num_unread", "_status", "_stream", "_waiter", "is_disconnected", "task",
    )  # fmt: skip

    def __init__(
        self,
        handler: "grpc.RpcMethodHandler[Any, Any]",
        stream: RpcStream,
        *,
        max_receive_bytes: int,
        max_send_bytes: int,
    ) -> None:
        self._handler = handler
        self._stream = stream
        self._max_send_bytes = max_send_bytes
        self._deframer = Deframer(max_receive_bytes)
        self._messages: deque[bytes] = deque()
        self._num_unread = 0  # bytes of `_messages`
        self._num_held = 0  # received bytes for which the window was not opened again
        self._is_ended = False
        self._is_finished = False
        self._waiter: asyncio.Future[None] | None = None
        self._has_opened = False
        self._status: tuple[grpc.StatusCode, str] | None = None
        self.is_disconnected = False  # True once the client has reset the stream or disconnected
        self.task: asyncio.Task[None] | None = None

    # -- events of the connection ---------------------------------------------------------------------

    def feed(self, data: bytes, num_bytes: int) -> None:
        """Takes a piece of the client's messages, which took `num_bytes` of the window."""
        try:
            for message in self._deframer.feed(data):
                self._messages.append(message)
                self._num_unread += len(message)
        except UnreadableMessage as error:
            self.fail(error.code, error.details)
            return
        self._num_held += num_bytes
        self._open_window()
        self._wake()

    def end(self) -> None:
        """The client sends no more messages."""
        self._is_ended = True
        if self._deframer.is_between:
            self._wake()
        else:
            self.fail(grpc.StatusCode.INTERNAL, "the last message is incomplete")

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call with this status."""
        if self._status is None:
            self._status = code, details
            self._cancel()

    def leave(self) -> None:
        """The client has reset the stream, or its connection is closed: nothing more can be sent."""
        self.is_disconnected = True
        self._cancel()

    # -- for handlers --------------------------------------------------------------------------------

    async def read(self) -> Any:
        """Returns the next message; `grpc.aio.EOF` after the last one."""
        while not self._messages:
            if self._is_ended:
                return grpc.aio.EOF  # type: ignore[attr-defined]  # no stub has it
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        self._num_unread -= len(message)
        if self._num_held:
            self._open_window()
        decode = self._handler.request_deserializer
        return message if decode is None else decode(message)

    async def write(self, message: Any) -> None:
        """Sends a message; waits while the windows of the peer are closed."""
        self._open()
        data = framed(self._encoded(message))
        sent = self._stream.send_now(data)
        while sent < len(data) and not self.is_disconnected:
            await self._stream.until_open()
            sent += self._stream.send_now(data[sent:])

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """Ends the call with an error."""
        if self._status is None:
            self._status = code, details
        raise grpc.aio.AbortError

    # -- the handler's task ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the handler, and sends its last message together with the status."""
        try:
            await self._respond()
        except asyncio.CancelledError:
            if self._status is None:
                self._status = grpc.StatusCode.CANCELLED, "the call was cancelled"
        except grpc.aio.AbortError:
            pass
        except Exception:  # top of a call: the error is logged
            log.exception("a call of the picker failed")
            self._status = grpc.StatusCode.UNKNOWN, "the call failed"
        self.finish()

    def finish(self) -> None:
        """Sends the status, unless it was sent. A task that was cancelled before it began has not sent it."""
        if self._is_finished or self.is_disconnected:
            return
        self._is_finished = True
        code, details = self._status or (grpc.StatusCode.OK, "")
        found = trailers(code, details)
        self._stream.send_headers(found if self._has_opened else (*opening(), *found), ends=True)

    async def _respond(self) -> None:
        handler = self._handler
        request = self if handler.request_streaming else await self.read()
        if request is grpc.aio.EOF:  # type: ignore[attr-defined]  # no stub has it
            await self.abort(grpc.StatusCode.INTERNAL, "the request has no message")
        if handler.response_streaming:
            call: Any = handler.stream_stream if handler.request_streaming else handler.unary_stream
            await call(request, self)
            return
        call = handler.stream_unary if handler.request_streaming else handler.unary_unary
        await self.write(await call(request, self))

    def _encoded(self, message: Any) -> bytes:
        encode = self._handler.response_serializer
        data: bytes = message if encode is None else encode(message)
        if len(data) > self._max_send_bytes:
            details = f"a response has {len(data)} bytes; at most {self._max_send_bytes} are sent"
            self._status = grpc.StatusCode.RESOURCE_EXHAUSTED, details
            raise grpc.aio.AbortError
        return data

    def _open(self) -> None:
        if not self._has_opened:
            self._has_opened = True
            if not self.is_disconnected:
                self._stream.send_headers(opening(), ends=False)

    def _open_window(self) -> None:
        if self._num_held and self._num_unread < MAX_UNREAD_BYTES:
            num_bytes, self._num_held = self._num_held, 0
            self._stream.take_back(num_bytes)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
