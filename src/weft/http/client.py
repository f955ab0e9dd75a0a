"""HTTP client connections: requests one after another, and responses with size limits.

The picker polls a hundred servers every 50 ms, and a benchmark holds a thousand streams whose TTFT must not include the
time of the client. A response takes a tenth of the processor time that httpx2 takes (docs/decisions/0083).
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self, cast

import httptools

from weft.core.aio.turns import Turns

_READ_BYTES: Final = 2**14
_MAX_UNREAD: Final = 64  # pieces; reading pauses at more
_LENGTHS: Final = {b"content-length", b"transfer-encoding"}


class BadResponse(Exception):
    """Error: the server's bytes are not an HTTP response, or exceed a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a response, in bytes. `head` also bounds the trailers."""

    head: int = 2**16
    body: int | None = None


class Response:
    """A response: its status and headers, then its body. The HTTP parser calls the `on_` methods."""

    def __init__(self, limits: Limits, wait: Callable[[], Awaitable[None]]) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.has_head = False
        self.is_complete = False
        self.can_follow = False  # whether another request may follow on this connection
        self.unread: list[bytes] = []  # pieces of the body
        self._limits = limits
        self._wait = wait
        self._parser = httptools.HttpResponseParser(self)
        self._num_head_bytes = 0  # or of what came since the last piece of the body
        self._num_body_bytes = self._num_declared_bytes = 0

    @property
    def status(self) -> int:
        status: int = self._parser.get_status_code()
        return status

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yields the pieces of the body as they arrive. Raises `OSError` or `BadResponse`."""
        while self.unread or not self.is_complete:
            if self.unread:
                yield self.unread.pop(0)
            else:
                await self._wait()

    async def read(self) -> bytes:
        """Returns the whole body. Other tasks run while a large body arrives. Raises `OSError` or `BadResponse`."""
        turns = Turns()
        body: list[bytes] = []
        while not self.is_complete:
            body += self.unread
            self.unread.clear()
            await self._wait()
            await turns.yield_if_due()
        return b"".join(body + self.unread)

    def feed(self, data: memoryview) -> None:
        """Parses received bytes. Raises `BadResponse`."""
        self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(f"not an HTTP answer: {error}") from error
        if self._num_head_bytes > self._limits.head:
            raise BadResponse("not an HTTP answer: the head is too long")
        num_bytes = max(self._num_body_bytes, self._num_declared_bytes)
        if self._limits.body is not None and num_bytes > self._limits.body:
            raise BadResponse("not an HTTP answer: the body is too long")

    def end(self) -> None:
        """Handles the closing of the connection, which ends a body of unknown length. Raises `ConnectionError` if the
        response is incomplete.
        """
        if not self.is_complete and (not self.has_head or self.headers.keys() & _LENGTHS):
            raise ConnectionError("the server closed the connection before the end of its answer")
        self.is_complete, self.can_follow = True, False

    def on_message_begin(self) -> None:
        """Prevents the reuse of the connection until the response is complete: a second response must not be taken for
        the response to the next request.
        """
        self.can_follow = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header. Trailers are dropped."""
        if not self.has_head:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.has_head = True
        self._num_declared_bytes = int(self.headers.get(b"content-length", b"0"))

    def on_body(self, piece: bytes) -> None:
        if not self.is_complete:
            self._num_head_bytes = 0
            self._num_body_bytes += len(piece)
            self.unread.append(piece)

    def on_message_complete(self) -> None:
        """Marks the response as complete. Only now does the parser know whether the connection stays open."""
        self.can_follow = not self.is_complete and self._parser.should_keep_alive()
        self.is_complete = True


class Connection(asyncio.BufferedProtocol):
    """An open connection to a server, for one request at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._response: Response | None = None
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_paused = False
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls, host: str, port: int, tls: ssl.SSLContext | None, name: str | None = None
    ) -> Self:
        """Connects to the server. `name` is the host name in the server's certificate, if `host` is an IP address."""
        expected = None if tls is None else name or host
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            cls, host, port, ssl=tls, server_hostname=expected
        )
        return connection

    async def send(self, request: bytes, limits: Limits) -> Response:
        """Sends a request; returns the response as soon as its headers have arrived. Raises `OSError` or
        `BadResponse`.
        """
        self._response = response = Response(limits, self._wait)
        self._transport.write(request)
        while not response.has_head:
            await self._wait()
        return response

    def close(self) -> None:
        self._transport.close()

    async def _wait(self) -> None:
        """Waits until new bytes have arrived. Raises the error of a broken connection."""
        if self._failure is not None:
            raise self._failure
        if self.is_paused:
            self.is_paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self, failure: Exception | None = None) -> None:
        self._failure = self._failure or failure
        if self._waiter is not None and not self._waiter.done():
            if failure is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(failure)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's is one by its methods alone

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Passes received bytes to the response. Bytes that belong to no response close the connection."""
        response = self._response
        if response is None or response.is_complete:
            self.is_open = False
            self._transport.abort()
            return
        try:
            response.feed(self._buffer[:nbytes])
        except BadResponse as error:
            self._wake(error)
            self._transport.abort()
            return
        if len(response.unread) > _MAX_UNREAD and not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the response: a body without a length is complete, any other incomplete response fails."""
        self.is_open = False
        failure = exc or ConnectionError("the server closed the connection")
        if self._response is not None and exc is None:
            try:
                self._response.end()
            except ConnectionError as error:
                failure = error
            else:
                self._wake()
        self._wake(failure)
