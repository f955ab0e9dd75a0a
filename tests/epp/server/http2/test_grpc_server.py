"""The picker's gRPC server, spoken to by gRPC's own client and by frames of `h2`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings

from tests.busy import PATIENCE_S
from tests.epp.pools import until
from weft.epp.server.http2.framing import framed
from weft.epp.server.http2.gateway_connection import CallLimits
from weft.epp.server.http2.grpc_server import GrpcServer
from weft.epp.server.http2.rpc import Rpc

LIMITS = CallLimits(
    max_calls=3, max_receive_bytes=2**22, max_send_bytes=2**22, handshake_timeout_s=30
)
HEADERS = [
    (":method", "POST"), (":scheme", "http"), (":path", "/test.Test/Echo"), (":authority", "test"),
    ("content-type", "application/grpc"), ("te", "trailers"),
]  # fmt: skip
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
PING = b"\0\0\x08\6\0\0\0\0\0" + bytes(8)
# HEADERS of stream 1 without an end, and a piece that continues them.
UNENDED = b"\0\0\1\1\0\0\0\0\1\x82"
CONTINUATION = b"\0\0\1\x09\0\0\0\0\1\x84"


class Service:
    """Answers each message with it, and waits before it reads while it is told to."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.num_cancelled = 0

    async def echo(self, _requests: object, rpc: Rpc) -> bytes:
        try:
            await self.may_read.wait()
            while (message := await rpc.read()) is not grpc.aio.EOF:
                await rpc.write(message)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return b"the end"

    async def fail(self, _request: bytes, _rpc: Rpc) -> bytes:
        raise ZeroDivisionError("a bug")

    def handler(self) -> "grpc.GenericRpcHandler":
        calls = {
            "Echo": grpc.stream_unary_rpc_method_handler(self.echo),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
        }
        return grpc.method_handlers_generic_handler("test.Test", calls)


@pytest.fixture
def limits() -> CallLimits:
    return LIMITS


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def server(service: Service, limits: CallLimits) -> AsyncIterator[GrpcServer]:
    """It stops at the end."""
    server = GrpcServer(limits)
    server.add(service.handler())
    yield server
    await server.stop(0.0)


@pytest.fixture
async def port(server: GrpcServer) -> int:
    """Where it listens."""
    return await server.start("127.0.0.1", 0, None, flag="--grpc-port")


@pytest.fixture
async def channel(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """gRPC's own client."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        yield channel


class Client:
    """A client that sends what it is told, and opens its windows only when it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self._reader, self._writer = reader, writer

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())

    async def next(self, kind: type[Event]) -> Event:
        """The next event of a kind; earlier ones are kept in `events`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for number, event in enumerate(self.events):
                    if isinstance(event, kind):
                        return self.events.pop(number)
                data = await self._reader.read(2**16)
                if not data:
                    raise EOFError
                self.events += self.h2.receive_data(data)
                self.flush()

    async def closed(self) -> None:
        """Returns once the server has closed the connection."""
        with suppress(EOFError):
            await self.next(StreamReset)


@asynccontextmanager
async def client(
    port: int, window: int = 2**16 - 1, table_bytes: int = 4096
) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    made = Client(reader, writer)
    sizes = {
        SettingCodes.INITIAL_WINDOW_SIZE: window,
        SettingCodes.HEADER_TABLE_SIZE: table_bytes,
    }
    made.h2.local_settings = Settings(client=True, initial_values=sizes)
    made.h2.decoder.max_allowed_table_size = table_bytes
    made.h2.initiate_connection()
    made.flush()
    yield made
    writer.close()


async def answers(call) -> Sequence[bytes]:
    """All messages of a call."""
    found = []
    while (message := await call.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


async def test_messages_come_back_in_order(server: GrpcServer, channel: grpc.aio.Channel):
    """Of two calls at once, one of them with megabytes; nothing of ended calls is kept."""
    echo = channel.stream_stream("/test.Test/Echo")
    large = [bytes([number]) * 2**20 for number in range(3)]
    one, two = echo(), echo()
    for message in large:
        await one.write(message)
        await two.write(b"small")
    await one.done_writing()
    await two.done_writing()
    assert await answers(one) == [*large, b"the end"]
    assert await answers(two) == [*([b"small"] * 3), b"the end"]
    assert await one.code() is grpc.StatusCode.OK
    await until(lambda: not server.num_calls)
    (connection,) = server.connections
    assert connection.num_streams == 0


@pytest.mark.parametrize(
    ("method", "code", "said"),
    [
        ("/test.Test/Other", grpc.StatusCode.UNIMPLEMENTED, "there is no method /test.Test/Other"),
        ("/test.Test/Fail", grpc.StatusCode.UNKNOWN, "the call failed"),
    ],
)
async def test_errors_have_a_status(
    channel: grpc.aio.Channel, method: str, code: grpc.StatusCode, said: str
):
    """And no words of a failure inside."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(method)(b"")
    assert caught.value.code() is code
    assert caught.value.details() == said


async def test_the_clients_time_ends_a_call(service: Service, port: int):
    """At the server too, not only at the client."""
    async with client(port) as made:
        made.h2.send_headers(1, [*HEADERS, ("grpc-timeout", "10m")])
        made.flush()
        found = dict((await made.next(ResponseReceived)).headers)
        assert found["grpc-status"] == "4"
    assert service.num_cancelled == 1


async def test_what_is_no_grpc_call_is_refused(port: int):
    """With a status of HTTP; the connection goes on."""
    async with client(port) as made:
        made.h2.send_headers(1, [*HEADERS[:4], ("content-type", "text/plain")], end_stream=True)
        made.h2.send_headers(3, HEADERS)
        made.h2.send_data(3, framed(b"hello"), end_stream=True)
        made.flush()
        assert dict((await made.next(ResponseReceived)).headers) == {":status": "415"}
        assert (await made.next(DataReceived)).data.startswith(framed(b"hello"))


@pytest.mark.parametrize(
    ("data", "status"), [(b"\1\0\0\0\0", "12"), (b"\0\xff\0\0\0", "8"), (b"\0\0", "13")]
)
async def test_bytes_that_are_no_message_end_their_call_alone(port: int, data: bytes, status: str):
    """A message that is compressed, too large, or incomplete."""
    async with client(port) as made:
        made.h2.send_headers(1, HEADERS)
        made.h2.send_data(1, data, end_stream=True)
        made.flush()
        assert dict((await made.next(ResponseReceived)).headers)["grpc-status"] == status
        made.h2.send_headers(3, HEADERS)
        made.h2.send_data(3, framed(b"hello"), end_stream=True)
        made.flush()
        assert dict((await made.next(TrailersReceived)).headers) == {"grpc-status": "0"}


async def test_a_response_waits_for_the_windows_of_its_client(port: int):
    """And goes on where it stopped."""
    message = framed(bytes(range(256)) * 8)
    async with client(port, window=1000) as made:
        made.h2.send_headers(1, HEADERS)
        made.h2.send_data(1, message, end_stream=True)
        made.flush()
        found = b""
        while len(found) < len(message):
            event = await made.next(DataReceived)
            found += event.data
            made.h2.acknowledge_received_data(event.flow_controlled_length, 1)
            made.flush()
        assert found.startswith(message)
        assert dict((await made.next(TrailersReceived)).headers) == {"grpc-status": "0"}


async def test_a_client_is_told_that_its_smaller_table_of_headers_is_used(port: int):
    """Its decoder fails otherwise."""
    async with client(port, table_bytes=0) as made:
        for stream_id in (1, 3):
            made.h2.send_headers(stream_id, HEADERS)
            made.h2.send_data(stream_id, framed(b"m"), end_stream=True)
            made.flush()
            opened = await made.next(ResponseReceived)
            assert dict(opened.headers)["content-type"] == "application/grpc"
            assert dict((await made.next(TrailersReceived)).headers) == {"grpc-status": "0"}


async def test_messages_that_nobody_reads_close_the_window(service: Service, port: int):
    """So a client cannot fill the memory; once they are read, all of them come."""
    service.may_read.clear()
    num_sent = 0
    piece = framed(b"x" * 16_000)
    async with client(port, window=2**24) as made:
        made.h2.send_headers(1, HEADERS)
        made.flush()
        for _ in range(200):
            await asyncio.sleep(0)
            if made.h2.local_flow_control_window(1) < len(piece):
                break
            made.h2.send_data(1, piece)
            num_sent += 1
            made.flush()
        else:
            raise AssertionError("the window never closed")
        service.may_read.set()
        made.h2.end_stream(1)
        made.flush()
        found = b""
        while len(found) < num_sent * len(piece):
            event = await made.next(DataReceived)
            found += event.data
            made.h2.acknowledge_received_data(event.flow_controlled_length, 1)
            made.flush()
    assert found.startswith(piece * num_sent)


async def test_a_reset_cancels_the_handler(service: Service, server: GrpcServer, port: int):
    """At once."""
    async with client(port) as made:
        made.h2.send_headers(1, HEADERS)
        made.flush()
        await until(lambda: server.num_calls)
        made.h2.reset_stream(1)
        made.flush()
        await until(lambda: not server.num_calls)
    assert service.num_cancelled <= 1


async def test_calls_beyond_the_limit_are_refused(server: GrpcServer, port: int):
    """Of all connections together."""
    async with client(port) as one, client(port) as two:
        for made, numbers in ((one, (1, 3)), (two, (1,))):
            for number in numbers:
                made.h2.send_headers(number, HEADERS)
            made.flush()
        await until(lambda: server.num_calls == LIMITS.max_calls)
        two.h2.send_headers(3, HEADERS)
        two.flush()
        assert dict((await two.next(ResponseReceived)).headers)["grpc-status"] == "8"


async def test_frames_out_of_order_close_their_connection_alone(
    channel: grpc.aio.Channel, port: int
):
    """With the reason; other connections go on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + b"\0\0\1\0\0\0\0\0\0x")  # DATA first
    async with asyncio.timeout(PATIENCE_S):
        said = await reader.read()
    assert b"\x07" in said  # GOAWAY
    writer.close()
    call = channel.stream_stream("/test.Test/Echo")()
    await call.done_writing()
    assert await answers(call) == [b"the end"]


@pytest.mark.parametrize(
    "limits",
    [replace(LIMITS, ping_every_s=0.02, ping_timeout_s=0.02)],
)
async def test_a_client_that_has_vanished_is_let_go(server: GrpcServer, port: int):
    """It answers no ping; one that does is kept."""
    async with client(port):
        await until(lambda: server.connections)
        async with asyncio.timeout(PATIENCE_S):
            while server.connections:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.01)


async def test_a_server_that_stops_says_so(
    service: Service, server: GrpcServer, channel: grpc.aio.Channel
):
    """Calls that do not end in time get a status."""
    service.may_read.clear()
    call = channel.stream_stream("/test.Test/Echo")()
    await until(lambda: server.num_calls)
    await server.stop(0.01)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert service.num_cancelled == 1
    await until(lambda: not server.connections)


async def test_calls_that_are_reset_at_once_leave_nothing(
    server: GrpcServer,
    channel: grpc.aio.Channel,
    port: int,
):
    """Other clients are answered meanwhile."""
    async with client(port) as made:
        await until(lambda: server.connections)
        [connection] = server.connections
        for number in range(1, 4001, 2):
            made.h2.send_headers(number, HEADERS)
            made.h2.reset_stream(number)
            made.h2.streams.clear()  # the client would keep all of them
            made.flush()
        call = channel.stream_stream("/test.Test/Echo")()
        await call.done_writing()
        assert await answers(call) == [b"the end"]
        await until(lambda: not server.num_calls)
        await until(lambda: not connection.num_streams)


@pytest.mark.parametrize("frames", [SETTINGS * 10_000, PING * 10_000])
async def test_frames_to_acknowledge_end_nothing(
    server: GrpcServer,
    channel: grpc.aio.Channel,
    port: int,
    frames: bytes,
):
    """Not even of a client that does not read: then the server reads no more of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + SETTINGS + frames)
    await until(lambda: server.connections)
    call = channel.stream_stream("/test.Test/Echo")()
    await call.done_writing()
    assert await answers(call) == [b"the end"]
    writer.close()


async def test_headers_without_an_end_close_their_connection(
    server: GrpcServer,
    port: int,
):
    """After a number of pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + SETTINGS + UNENDED + CONTINUATION * 100)
    async with asyncio.timeout(PATIENCE_S):
        assert b"\x07" in await reader.read()  # GOAWAY, and then the end
    writer.close()
    assert not server.num_calls
