"""What the server says in HTTP/2 itself: limits, and patience with pings."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import check_canary
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.methods import METHODS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4
MAX_CONCURRENT_STREAMS = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One HTTP/2 frame; stream 0 is the connection as a whole."""

    kind: int
    flags: int = 0
    payload: bytes = b""
    stream: int = 0

    def encode(self) -> bytes:
        head = struct.pack(">I", len(self.payload))[1:]
        place = struct.pack(">I", self.stream)
        return head + bytes([self.kind, self.flags]) + place + self.payload


class Connection:
    """A client that speaks frames, and no gRPC."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *frames: Frame) -> None:
        self._writer.write(b"".join(frame.encode() for frame in frames))

    async def receive(self, *kinds: int) -> Frame:
        """The next frame of one of these kinds."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] in kinds:
                    return Frame(head[3], head[4], payload)


@pytest.fixture
async def connection(target: str) -> AsyncIterator[Connection]:
    """Connected, nothing said but hello."""
    host, port = target.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE)
    connection = Connection(reader, writer)
    connection.send(Frame(SETTINGS))
    yield connection
    writer.close()
    await writer.wait_closed()


async def test_number_of_streams_is_bounded(connection: Connection):
    """One connection cannot open calls without end; a gateway's load fits on one."""
    settings = await connection.receive(SETTINGS)

    values = dict(struct.iter_unpack(">HI", settings.payload))
    assert values[MAX_CONCURRENT_STREAMS] == 1024


async def test_idle_pings_are_answered(connection: Connection, stub: VllmEngineStub):
    """Gateways ping idle connections: each ping is answered, and none is punished with GOAWAY."""
    await connection.receive(SETTINGS)
    connection.send(Frame(SETTINGS, ACK))
    for number in range(20):
        connection.send(Frame(PING, payload=struct.pack(">Q", number)))

        answer = await connection.receive(PING, GOAWAY)

        assert answer == Frame(PING, ACK, struct.pack(">Q", number))
    await check_canary(stub)


def call_headers(path: bytes) -> bytes:
    """The head of a gRPC call, in HPACK without compression."""

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    pairs = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return b"".join(literal(name, value) for name, value in pairs)


async def test_flood_of_resets_harms_nobody(
    connection: Connection, stub: VllmEngineStub, engine: FakeEngine
):
    """Row 16: calls that are opened and reset at once are dropped, or the connection is."""
    head = call_headers(METHODS["Generate"].path.encode())
    for number in range(10_000):
        stream = 2 * number + 1
        connection.send(
            Frame(HEADERS, END_HEADERS, head, stream),
            Frame(RST_STREAM, 0, struct.pack(">I", 8), stream),
        )

    await check_canary(stub)
    assert len(engine.calls) == 1


class BlockingConnection:
    """A connection whose every method holds the event loop, as a machine under load does."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.sendall(PREFACE + Frame(SETTINGS).encode())
        self._read_until(SETTINGS)
        self._socket.sendall(Frame(SETTINGS, ACK).encode())

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *frames: Frame) -> None:
        """Return once the other side has taken all of them in."""
        ping = Frame(PING, payload=b"arrived?")
        self._socket.sendall(b"".join(frame.encode() for frame in (*frames, ping)))
        self._read_until(PING)

    def count_answers(self, num_calls: int) -> int:
        """How many of so many open calls bring a message until all have ended."""
        num_answers = num_ended = 0
        while num_ended < num_calls:
            frame = self._receive()
            num_answers += frame.kind == DATA
            num_ended += frame.kind == RST_STREAM
            num_ended += frame.kind == HEADERS and bool(frame.flags & END_STREAM)
        return num_answers

    def _read_until(self, kind: int) -> None:
        while self._receive().kind != kind:
            pass

    def _receive(self) -> Frame:
        head = self._read(9)
        return Frame(head[3], head[4], self._read(int.from_bytes(head[:3], "big")))

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            assert part, "the server hung up"
            data += part
        return data


async def test_flood_of_one_connection_cancels_no_call_of_another(target: str):
    """Calls that wait to be taken up have room, however many of another connection's wait too."""
    flood_head = call_headers(METHODS["Generate"].path.encode())
    flood = [
        frame
        for stream in range(1, 4096, 2)
        for frame in (
            Frame(HEADERS, END_HEADERS, flood_head, stream),
            Frame(RST_STREAM, 0, struct.pack(">I", 8), stream),
        )
    ]
    head = call_headers(METHODS["HealthCheck"].path.encode())
    calls = [
        frame
        for stream in range(1, 1024, 2)
        for frame in (
            Frame(HEADERS, END_HEADERS, head, stream),
            Frame(DATA, END_STREAM, bytes(5), stream),
        )
    ]
    with BlockingConnection(target) as flooded, BlockingConnection(target) as other:
        flooded.send(*flood)
        other.send(*calls)

        answered = await asyncio.to_thread(other.count_answers, len(calls) // 2)

    assert answered == len(calls) // 2
