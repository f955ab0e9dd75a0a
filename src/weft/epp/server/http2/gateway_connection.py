"""`Connection`: one HTTP/2 connection of a gRPC client, by `h2`. Starts calls and passes their messages on."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import grpc
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from weft.epp.server.http2.counted_connection import CountedConnection
from weft.epp.server.http2.framing import Headers, is_grpc, opening, timeout_s, trailers
from weft.epp.server.http2.rpc import Rpc

log = logging.getLogger("weft.epp")

_STREAM_WINDOW: Final = 2**19
# Of all streams together. It opens again as soon as bytes arrive: the windows of streams bound what is held.
_CONNECTION_WINDOW: Final = 2**24
_FIRST_WINDOW: Final = 2**16 - 1  # by the protocol
_MAX_HEADER_BYTES: Final = 16 * 2**10
# A frame of h2's own would end the present calls.
_GO_AWAY: Final = b"\0\0\x08\x07\0\0\0\0\0"
_NO_ERROR: Final = b"\0\0\0\0"
_PING: Final = b"weft-epp"

# Bytes that may wait for the end of a turn of the loop.
_MAX_BUFFERED: Final = 2**18


class ConnectionOwner(Protocol):
    """The server of a connection."""

    connections: "set[GatewayConnection]"

    @property
    def num_calls(self) -> int:
        """Number of calls of all connections."""

    def find(self, method: str) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Returns the handler of a method; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of a gRPC server; sizes are in bytes."""

    max_calls: int  # of all connections, and of one
    max_receive_bytes: int
    max_send_bytes: int
    handshake_timeout_s: float  # for TLS, and then for the first frames
    # A connection that is silent for as long gets a ping, and is closed if it stays silent.
    ping_every_s: float = 60.0
    ping_timeout_s: float = 20.0


class _Stream:
    """Writes the responses of one call to its stream of a connection."""

    __slots__ = ("_connection", "_id")

    def __init__(self, connection: "GatewayConnection", stream_id: int) -> None:
        self._connection = connection
        self._id = stream_id

    def send_headers(self, headers: Headers, *, ends: bool) -> None:
        self._connection.send_headers(self._id, headers, ends=ends)

    def send_now(self, data: bytes) -> int:
        return self._connection.send_now(self._id, data)

    async def until_open(self) -> None:
        await self._connection.until_open()

    def take_back(self, num_bytes: int) -> None:
        self._connection.take_back(self._id, num_bytes)


class GatewayConnection(asyncio.Protocol):
    """Serves one connection of a client, from its first frame to its end; `owner` has it meanwhile."""

    def __init__(self, owner: ConnectionOwner, limits: CallLimits) -> None:
        self._owner = owner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._h2 = CountedConnection()
        self._h2.local_settings = Settings(client=False, initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_calls,
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
        })  # fmt: skip
        self._transport: asyncio.Transport | None = None
        self._rpcs: dict[int, Rpc] = {}
        self._owed: dict[int, int] = {}  # bytes by which the windows of streams are to be opened
        self._num_received = 0  # bytes since the connection's window was opened
        self._opened = (
            asyncio.Event()
        )  # pulsed: wakes calls that wait for a window, or for the transport
        self._is_paused = False
        self._is_flushing = False
        self._is_leaving = False
        self._received_at = self._loop.time()
        self._num_buffered = 0
        self._num_blocked = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_calls(self) -> int:
        """Number of calls that have not ended."""
        return len(self._rpcs)

    @property
    def num_streams(self) -> int:
        """Number of streams that `h2` keeps."""
        return len(self._h2.streams)

    # -- asyncio.Protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.connections.add(self)
        self._set_timer(self._limits.handshake_timeout_s, self.abort)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - _FIRST_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        try:
            for event in self._h2.receive_data(data):
                self._on(event)
        except H2Error as error:
            log.debug("a connection of the gateway broke HTTP/2: %s", error)
            self._flush()  # h2 has written the reason
            self.close()
            return
        self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        for rpc in list(self._rpcs.values()):
            rpc.leave()
        self._wake()
        self._owner.connections.discard(self)

    def pause_writing(self) -> None:
        # A peer that does not read its responses sends no more requests or pings either.
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._wake()

    # -- for streams ----------------------------------------------------------------------------------

    def send_headers(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        """Sends headers. Those that end the response also end what the client sends."""
        stream = self._h2.streams.get(stream_id)
        if self._transport is None or stream is None or stream.closed:
            return
        self._h2.write_headers(stream, headers, ends=ends)
        if ends and not stream.closed:
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        self._flush_soon()

    def send_now(self, stream_id: int, data: bytes) -> int:
        """Sends the bytes that fit the windows; returns their number."""
        stream = self._h2.streams.get(stream_id)
        if self._transport is None or stream is None or stream.closed:
            return len(data)  # nobody is left to read them
        if self._is_paused:
            return 0
        sent = self._h2.write_data(stream, data)
        self._num_buffered += sent
        if self._num_buffered > _MAX_BUFFERED:
            self._flush()  # the transport says when the peer does not keep up
        else:
            self._flush_soon()
        return sent

    async def until_open(self) -> None:
        """Waits for the next change of a window, or of the transport."""
        self._num_blocked += 1
        try:
            await self._opened.wait()
        finally:
            self._num_blocked -= 1

    def take_back(self, stream_id: int, num_bytes: int) -> None:
        """Opens the window of a stream, at the latest once half of it is used."""
        owed = self._owed.get(stream_id, 0) + num_bytes
        if owed < _STREAM_WINDOW // 2:
            self._owed[stream_id] = owed
            return
        self._owed.pop(stream_id, None)
        stream = self._h2.streams.get(stream_id)
        if stream is not None and not stream.closed:
            self._h2.increment_flow_control_window(owed, stream_id)
            self._flush_soon()

    # -- the end --------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Tells the client to send further calls elsewhere. Present calls go on."""
        self._is_leaving = True
        if self._transport is not None:
            last = self._h2.highest_inbound_stream_id
            self._transport.write(_GO_AWAY + last.to_bytes(4, "big") + _NO_ERROR)

    def fail_calls(self) -> None:
        """Ends the present calls with an error."""
        for rpc in list(self._rpcs.values()):
            rpc.fail(grpc.StatusCode.UNAVAILABLE, "the picker stops")

    def close(self) -> None:
        """Closes the connection once all is written."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- events ---------------------------------------------------------------------------------------

    def _on(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._on_data(event)
            case RequestReceived():
                self._on_request(event)
            case StreamEnded(stream_id=stream_id):
                if (rpc := self._rpcs.get(stream_id)) is not None:
                    rpc.end()
            case StreamReset(stream_id=stream_id):
                if (rpc := self._rpcs.get(stream_id)) is not None:
                    rpc.leave()
                self._wake()
            case WindowUpdated() | RemoteSettingsChanged():
                self._wake()
                if isinstance(event, RemoteSettingsChanged):
                    self._set_timer(self._limits.ping_every_s, self._keep_alive)
            case _:  # pings and acknowledgements, which h2 answers
                pass

    def _on_data(self, event: DataReceived) -> None:
        num_bytes = event.flow_controlled_length or 0
        self._num_received += num_bytes
        if self._num_received >= _CONNECTION_WINDOW // 2:
            self._h2.increment_flow_control_window(self._num_received)
            self._num_received = 0
        rpc = self._rpcs.get(event.stream_id)
        if rpc is not None:
            rpc.feed(event.data or b"", num_bytes)

    def _on_request(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        headers: dict[bytes, bytes] = dict(event.headers)
        if self._is_leaving:
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            self._h2.forget(stream_id)
            return
        if not is_grpc(headers):
            self._refuse(stream_id, ((b":status", b"415"),))
            return
        path = headers.get(b":path", b"").decode("ascii", "replace")
        handler = self._owner.find(path)
        if handler is None:
            status = trailers(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {path[:256]}")
            self._refuse(stream_id, (*opening(), *status))
        elif self._owner.num_calls >= self._limits.max_calls:
            status = trailers(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
            self._refuse(stream_id, (*opening(), *status))
        else:
            self._start(stream_id, handler, timeout_s(headers))

    def _start(
        self, stream_id: int, handler: "grpc.RpcMethodHandler[Any, Any]", limit_s: float | None
    ) -> None:
        rpc = Rpc(
            handler,
            _Stream(self, stream_id),
            max_receive_bytes=self._limits.max_receive_bytes,
            max_send_bytes=self._limits.max_send_bytes,
        )
        self._rpcs[stream_id] = rpc
        self._h2.num_open = len(self._rpcs)
        rpc.task = self._loop.create_task(rpc.run())
        timer = None
        if limit_s is not None:
            late = partial(rpc.fail, grpc.StatusCode.DEADLINE_EXCEEDED, "the client's time is over")
            timer = self._loop.call_later(limit_s, late)
        rpc.task.add_done_callback(partial(self._ended, stream_id, timer))

    def _ended(
        self, stream_id: int, timer: asyncio.TimerHandle | None, _task: "asyncio.Task[None]"
    ) -> None:
        if timer is not None:
            timer.cancel()
        self._rpcs.pop(stream_id).finish()
        self._owed.pop(stream_id, None)
        self._h2.num_open = len(self._rpcs)
        self._h2.forget(stream_id)

    def _refuse(self, stream_id: int, headers: Headers) -> None:
        self.send_headers(stream_id, headers, ends=True)
        self._h2.forget(stream_id)

    # -- bytes ----------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Writes what all calls of this turn of the loop send at once."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self._num_buffered = 0
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _wake(self) -> None:
        if self._num_blocked:
            self._opened.set()
            self._opened = asyncio.Event()

    def _keep_alive(self) -> None:
        """Sends a ping to a silent peer; a peer that does not answer it has vanished."""
        silent_s = self._loop.time() - self._received_at
        every_s, timeout_s = self._limits.ping_every_s, self._limits.ping_timeout_s
        if silent_s >= every_s + timeout_s:
            self.abort()
            return
        if silent_s >= every_s:
            self._h2.ping(_PING)
            self._flush()
        next_s = every_s - silent_s if silent_s < every_s else every_s + timeout_s - silent_s
        self._set_timer(next_s, self._keep_alive)

    def _set_timer(self, seconds: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, call)
