"""uvicorn's HTTP/1.1 protocol with additional limits: on the size and time of request heads, and on connections."""

import asyncio
import uuid
from collections.abc import Callable
from itertools import chain
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState as UvicornState

from weft.web.http.endpoint import PARTS, Dialect
from weft.web.http.exchange import ABORT
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError, to_problem


class LingeringTransport(asyncio.Transport):
    """A transport that is closed at once, or, while `has_more_to_come`, after `linger_s` at the latest."""

    def __init__(
        self, plain: asyncio.Transport, has_more_to_come: Callable[[], bool], linger_s: float
    ) -> None:
        super().__init__()
        self._linger_s = linger_s
        self.plain = plain
        self._has_more_to_come = has_more_to_come
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close; while the client may be sending, for our side only. Idempotent."""
        if self.is_closing():
            return
        if not self._has_more_to_come():
            self.plain.close()
            return
        self._timer = asyncio.get_running_loop().call_later(self._linger_s, self.plain.close)
        if self.plain.can_write_eof():  # not with TLS, where the response must declare its length
            self.plain.write_eof()
        self.plain.resume_reading()

    def close_now(self) -> None:
        """Close for both sides."""
        self.forget()
        self.plain.close()

    def forget(self) -> None:
        """Stops the timer: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def is_closing(self) -> bool:
        """True if the transport is closed or about to be closed."""
        return self._timer is not None or self.plain.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data, unless sending has ended."""
        if self._timer is None:
            self.plain.write(data)

    def abort(self) -> None:
        """Closes the connection at once, without sending the rest."""
        self.forget()
        self.plain.abort()

    def pause_reading(self) -> None:
        self.plain.pause_reading()

    def resume_reading(self) -> None:
        self.plain.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self.plain.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.plain.get_extra_info(name, default)


_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_LINE_OVERHEAD = 4  # bytes beside name and value of a header: ": " and the line end
_TLS_HELLO = b"\x16\x03"
_VERSIONS = ("1.0", "1.1")
# No real length has more digits; Python refuses to parse thousands of digits, even zeros.
_MAX_LENGTH_DIGITS = 19
# With these statuses the rest of the request is not read: the client sends nothing more, or the server has no room
# for it.
_HANG_UP = (408, 503)


class Connections(UvicornState):
    """The open connections of one server, common response headers, and an event for the moment when all are closed.

    Only requests for `socket_paths` may be upgraded to WebSockets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.socket_paths: tuple[bytes, ...] = ()
        self.all_lost = asyncio.Event()

    def note_lost(self) -> None:
        """Updates the event after a connection was lost."""
        if not self.connections:
            self.all_lost.set()
        else:
            self.all_lost.clear()


class LimitedProtocol(HttpToolsProtocol):
    """A connection. A refused request head gets a JSON error, and the connection is closed."""

    _refusal: HttpError | None = None
    _is_in_head = True
    _num_head_bytes = 0
    _has_refused = False
    _timer: asyncio.TimerHandle | None = None  # timeout of the next bytes from the client

    def __init__(self, config: Config, open_connections: Connections, options: HttpOptions) -> None:
        super().__init__(config=config, server_state=open_connections, app_state={})
        self._options = options
        self._open_connections = open_connections

    # -- connection -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses a connection above the limit; for others, starts the timeout of the first head."""
        self._lingering = LingeringTransport(
            transport, self._has_more_to_come, self._options.linger_s
        )
        super().connection_made(self._lingering)
        if len(self.connections) > self._options.max_connections:
            self._refuse(HttpError(503, "too many connections"))
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_timer()
        self._lingering.forget()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._open_connections.note_lost()

    def data_received(self, data: bytes) -> None:
        """Parses data; refuses a head that exceeds the limit."""
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes == len(data) and data.startswith(_TLS_HELLO):
                self._refuse(HttpError(400, "this port speaks plain HTTP, not TLS"))
                return
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > self._options.max_head_bytes:
            self._refuse(self._too_large())

    def send_400_response(self, msg: str) -> None:
        """Answers a request that the parser refused, or that this class refused inside the parser."""
        self._refuse(self._refusal or HttpError(400, "this is not a valid HTTP/1.1 request"))

    # -- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start to count; requests that follow on a connection have their own limits."""
        super().on_message_begin()
        if not self._is_in_head:
            # The bytes of this packet are counted when the head is complete.
            self._is_in_head, self._num_head_bytes = True, 1
            self._expect_head()
        extensions: dict[str, Any] = {ABORT: self._abort, PARTS: self}
        self.scope["extensions"] = extensions

    def on_header(self, name: bytes, value: bytes) -> None:
        """Headers after the body (trailers) count as part of the head, and are dropped."""
        if self._is_in_head:
            super().on_header(name, value)
            return
        self._num_head_bytes += len(name) + len(value) + _LINE_OVERHEAD
        if self._num_head_bytes > self._options.max_head_bytes:
            self._stop(self._too_large())

    def on_headers_complete(self) -> None:
        """Refuses an ambiguous request, before any handler gets it."""
        num_bytes = sum(map(len, chain.from_iterable(self.headers)))
        self._num_head_bytes = len(self.url) + num_bytes + _LINE_OVERHEAD * len(self.headers)
        if self._num_head_bytes > self._options.max_head_bytes:
            self._stop(self._too_large())
        problem = _framing_problem(self.parser.get_http_version(), self.headers)
        if problem is not None:
            self._stop(HttpError(400, problem))
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _should_upgrade_to_ws(self) -> bool:
        """True for the paths that take WebSockets; all others answer as without the headers of an upgrade."""
        return self.url.partition(b"?")[0].endswith(self._open_connections.socket_paths)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection over to a protocol for WebSockets."""
        self._stop_timer()
        plain = self._lingering.plain
        self._is_in_head = False
        self.transport = plain
        # Imported late: few servers have WebSockets, and the library would delay every start.
        from weft.web.http.connections.limited_web_socket import LimitedWebSocket  # noqa: PLC0415

        self.ws_protocol_class = LimitedWebSocket
        super().handle_websocket_upgrade()
        socket = plain.get_protocol()
        assert isinstance(socket, LimitedWebSocket)
        socket.note_lost = self._open_connections.note_lost

    def on_message_complete(self) -> None:
        """Starts the timeout of the next head, during which the connection may idle."""
        self._stop_timer()
        super().on_message_complete()
        if self.cycle is not None:  # None in an upgrade to a WebSocket
            self.cycle.more_body = False  # also if the response was complete before

    def on_response_complete(self) -> None:
        """Lets an unread body end within a short time: a client that still sends would not see the response."""
        super().on_response_complete()
        # Not if the next request on this connection, which has begun already, is the one to continue.
        is_unread = self.cycle.response_complete and self.cycle.more_body
        if is_unread and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._options.linger_s, self._lingering.close_now)

    # -- parts of an answer ---------------------------------------------------------------------

    @property
    def takes_parts(self) -> bool:
        """True if `write_part` may be called; not while another pipelined request is waiting."""
        cycle: RequestResponseCycle = self.cycle
        is_under_way = cycle.chunked_encoding and not (
            cycle.response_complete or cycle.disconnected
        )
        return bool(is_under_way) and not self.flow.write_paused

    def write_part(self, data: bytes) -> None:
        """Writes a part of the body as uvicorn's `send` would."""
        self._lingering.write(b"%x\r\n%b\r\n" % (len(data), data))

    # -- refusals -------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._options.head_timeout_s, self._on_slow_head)

    def _on_slow_head(self) -> None:
        if self._num_head_bytes:
            self._refuse(HttpError(408, "the head came too slowly"))
        else:  # opened ahead of use, as proxies do: without a request there is no response
            self._lingering.close_now()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_large(self) -> HttpError:
        return HttpError(431, f"the head is larger than {self._options.max_head_bytes} bytes")

    def _stop(self, error: HttpError) -> None:
        self._refusal = error
        raise httptools.HttpParserError(str(error))

    def _has_more_to_come(self) -> bool:
        """True if the client may still be sending data that nothing will read."""
        if self._is_in_head:
            return self._has_refused
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.more_body

    def _abort(self) -> None:
        # A client that was refused must be able to read the reason.
        if not self._has_refused:
            self.transport.abort()

    def _refuse(self, error: HttpError) -> None:
        """Sends an error and closes the connection; only closes it if a response has begun."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if not self._may_answer():
            self._lingering.close_now()
            return
        self._has_refused = True
        request_id = uuid.uuid4().hex
        problem = to_problem(error, request_id)
        body = problem.body(Dialect.OPENAI, request_id)
        extra = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n{extra}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if error.status in _HANG_UP:
            self._lingering.close_now()
        else:
            self.transport.close()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Ends the endpoint's wait for the rest of the body: the response has been sent.
            cycle.disconnected = True
            cycle.message_event.set()

    def _may_answer(self) -> bool:
        """True if the client would read our bytes as the answer to the refused request."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        # The refused request must be first in line: a refused head that follows a complete request waits for that
        # request's response.
        return not self._is_in_head and not cycle.response_started and not self.pipeline


def _framing_problem(version: str, headers: list[tuple[bytes, bytes]]) -> str | None:
    if version not in _VERSIONS:
        return "the version must be HTTP/1.0 or HTTP/1.1"
    given = dict(headers)
    names = [name for name, _ in headers]
    length, coding = given.get(b"content-length"), given.get(b"transfer-encoding")
    if length is not None:
        if coding is not None:
            return "content-length and transfer-encoding exclude each other"
        if names.count(b"content-length") > 1 or not length.isdigit():
            return "exactly one content-length with a number is needed"
        if len(length) > _MAX_LENGTH_DIGITS:
            return f"content-length has more than {_MAX_LENGTH_DIGITS} digits"
    elif coding is not None and (
        names.count(b"transfer-encoding") > 1 or coding.strip().lower() != b"chunked"
    ):
        return "transfer-encoding must be chunked"
    num_hosts = names.count(b"host")
    if num_hosts > 1 or (num_hosts == 0 and version != "1.0"):
        return "exactly one host header is needed"
    return None
