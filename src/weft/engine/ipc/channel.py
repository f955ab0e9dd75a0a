"""`Channel`: messages in both directions over a socket pair or a connection, until either side closes it.

A side that must know whether the other side is alive sends heartbeats; the other side answers each heartbeat, and can
in turn expect heartbeats.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import msgspec

from weft.core.aio.heartbeat import Heartbeat
from weft.core.values.controls import START_S
from weft.engine.ipc.messages import MAX_FRAME_BYTES, Beat

_LENGTH = 4  # number of bytes for the length before each message
_CHUNK = 1 << 16

T = TypeVar("T")


class Channel(Generic[T]):
    """A message channel; made by `open`, inside a running event loop. `T` is the type of received messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Any
    ) -> None:
        self._reader, self._writer = reader, writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T | Beat] = msgspec.msgpack.Decoder(received | Beat)
        self._heartbeat: Heartbeat | None = None
        self._is_beating = False
        self._partial = bytearray()
        self._frames: deque[bytes] = deque()

    @classmethod
    async def open(cls, end: socket.socket, received: Any) -> "Channel[T]":
        """Opens one end of a channel; `received` is the type of messages from the other end."""
        end.setblocking(False)
        is_local = end.family == socket.AF_UNIX
        connect = asyncio.open_unix_connection if is_local else asyncio.open_connection
        reader, writer = await connect(sock=end)
        return cls(reader, writer, received)

    def send(self, message: msgspec.Struct | msgspec.Raw) -> None:
        """Sends a message without waiting. No effect if the channel is closed."""
        if not self._writer.is_closing():
            body = self._encoder.encode(message)
            head = len(body).to_bytes(_LENGTH, "big")
            if len(body) > _CHUNK:  # not joined: the media of a prompt may be 128 MiB
                self._writer.write(head)
                self._writer.write(body)
            else:
                self._writer.write(head + body)

    @property
    def num_unsent(self) -> int:
        """Number of bytes that this side has not yet sent to the other side."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """True if either side has closed the channel, as far as this side knows."""
        return self._writer.is_closing()

    async def drain(self) -> None:
        """Waits while more than a limit of bytes is unsent."""
        await self._writer.drain()

    def beat(self, timeout_s: float) -> Heartbeat:
        """Returns a `Heartbeat` that sends beats; a peer that has just started gets more time for its first answer."""
        self._is_beating = True
        self._heartbeat = Heartbeat(lambda: self.send(Beat()), timeout_s, start_s=START_S)
        return self._heartbeat

    def expect_beats(self, timeout_s: float) -> Heartbeat:
        """Returns a `Heartbeat` that expects beats from the other side."""
        self._heartbeat = Heartbeat(lambda: None, timeout_s)
        return self._heartbeat

    def _take_beat(self, beat: Beat) -> None:
        if self._heartbeat is not None:
            self._heartbeat.answered()
        if not self._is_beating:
            self.send(beat)

    async def receive(self) -> T | Beat | None:
        """Returns the next message or heartbeat; None when the other side has closed the channel."""
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
        """Yields messages other than heartbeats until the other side closes the channel."""
        while (message := await self.receive()) is not None:
            if isinstance(message, Beat):
                self._take_beat(message)
            else:
                yield message

    def close(self) -> None:
        """Closes the channel once all bytes are sent; idempotent."""
        self._writer.close()

    def abort(self) -> None:
        """Closes the channel at once and drops unsent bytes, because the other side does not respond."""
        self._writer.transport.abort()


def _take_frames(waiting: bytearray) -> list[bytes]:
    """Removes the complete messages from the received bytes and returns them."""
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
