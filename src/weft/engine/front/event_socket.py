"""`EventSocket`: receives events of engines in other processes from a ZeroMQ socket, on the event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import zmq

# Frames that are handled in one turn of the event loop: an engine may send as fast as they are read, and a frame with
# the log-probabilities of 128 answers takes some milliseconds.
_MAX_FRAMES = 32
_MAX_TURN_S = 0.005
_LAST_EVENTS_S = 0.05

T = TypeVar("T")


class EventSocket(Generic[T]):
    """Decodes each frame as type `received` and passes the event to `take`, from `watch` until the socket is closed."""

    def __init__(
        self, socket: "zmq.Socket[bytes]", received: Any, take: Callable[[T], None]
    ) -> None:
        self._socket = socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(received)
        self.num_frames = 0

    def watch(self) -> None:
        """Starts reading, and handles the events that have already arrived."""
        # Not zmq.asyncio: its futures cost more than a frame's decoding.
        self._loop.add_reader(self._socket.fileno(), self._take_all)
        self._take_all()

    async def take_last(self) -> None:
        """Returns when no more events arrive from a peer that has ended."""
        num_frames = None
        while num_frames != self.num_frames:
            num_frames = self.num_frames
            await asyncio.sleep(_LAST_EVENTS_S)

    def leave(self) -> None:
        """Stops reading; call it before the socket is closed."""
        self._loop.remove_reader(self._socket.fileno())

    def _take_all(self) -> None:
        """Handles all events that have arrived. None may be left unread, because the socket's file descriptor becomes
        readable only once for all of them.
        """
        ends_at = time.monotonic() + _MAX_TURN_S
        for _ in range(_MAX_FRAMES):
            if self._socket.closed or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            self.num_frames += 1
            self._take(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            if time.monotonic() > ends_at:
                break
        self._loop.call_soon(self._take_all)
