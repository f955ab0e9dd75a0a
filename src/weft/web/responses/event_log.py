"""The events of a background response, buffered for clients that follow them now or later."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from weft.core.errors import BadRequest


class EventLog:
    """Log of a response's events: one writer, any number of followers, on one event loop.

    Beyond `max_bytes` the oldest events are dropped, but never the last. A follower that needs a dropped event gets an
    error, before the stream begins or as its last event.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._first = 0  # number of the oldest event in the buffer
        self._is_ended = False
        self._is_changed = asyncio.Event()
        self.num_bytes = 0

    def append(self, event: bytes) -> None:
        """Adds an encoded event, with the next number."""
        self._events.append(event)
        self.num_bytes += len(event)
        while self.num_bytes > self._max_bytes and len(self._events) > 1:
            self.num_bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def end(self) -> None:
        """Ends the log: followers get no further events."""
        self._is_ended = True
        self._wake()

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yields every event with a number above `after`, present and future ones, until the end."""
        number = after + 1
        while True:
            while number < self._first + len(self._events):
                if number < self._first:
                    raise BadRequest(
                        "starting_after",
                        f"events up to {self._first - 1} are no longer kept; start after that",
                        after,
                    )
                yield self._events[number - self._first]
                number += 1
            if self._is_ended:
                return
            await self._is_changed.wait()

    def _wake(self) -> None:
        self._is_changed.set()
        self._is_changed = asyncio.Event()
