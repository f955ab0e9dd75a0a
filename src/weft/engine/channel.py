"""`Channel`: messages both ways over a pair of sockets, or a connection, until either side has gone."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import msgspec

from weft.engine.messages import MAX_FRAME_BYTES

_LENGTH = 4  # bytes before each message
_CHUNK = 1 << 16

T = TypeVar("T")


class Channel(Generic[T]):
    """Made by `open`, inside a running event loop. `T` is what is received."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Any
    ) -> None:
        self._reader, self._writer = reader, writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(received)
        self._partial = bytearray()
        self._frames: deque[bytes] = deque()

    @classmethod
    async def open(cls, end: socket.socket, received: Any) -> "Channel[T]":
        """One end; `received` is the type of what comes from the other."""
        end.setblocking(False)
        is_local = end.family == socket.AF_UNIX
        connect = asyncio.open_unix_connection if is_local else asyncio.open_connection
        reader, writer = await connect(sock=end)
        return cls(reader, writer, received)

    def send(self, message: msgspec.Struct | msgspec.Raw) -> None:
        """Never blocks. To who has gone it is nothing."""
        if not self._writer.is_closing():
            body = self._encoder.encode(message)
            self._writer.write(len(body).to_bytes(_LENGTH, "big") + body)

    @property
    def num_unsent(self) -> int:
        """Bytes that the other side has not taken."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """Whether either side has left, as far as is known here."""
        return self._writer.is_closing()

    async def drain(self) -> None:
        """Wait while much is unsent."""
        await self._writer.drain()

    async def receive(self) -> T | None:
        """The next message; None when the other side has gone."""
        while not self._frames:
            try:
                chunk = await self._reader.read(_CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._partial += chunk
            self._frames.extend(_take_frames(self._partial))
        return self._decoder.decode(self._frames.popleft())

    async def messages(self) -> AsyncIterator[T]:
        """What comes, until the other side has gone."""
        while (message := await self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Leave once what was sent is taken; idempotent."""
        self._writer.close()

    def abort(self) -> None:
        """Leave at once: who does not answer takes nothing either."""
        self._writer.transport.abort()


def _take_frames(waiting: bytearray) -> list[bytes]:
    """Take the whole messages out of what has come."""
    frames, start = [], 0
    while len(waiting) - start >= _LENGTH:
        size = int.from_bytes(waiting[start : start + _LENGTH], "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {size} bytes")
        end = start + _LENGTH + size
        if len(waiting) < end:
            break
        frames.append(bytes(waiting[start + _LENGTH : end]))
        start = end
    del waiting[:start]
    return frames
