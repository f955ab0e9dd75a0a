"""The events of a background response, buffered for clients that follow them now or later."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from weft.core.errors import BadRequest


class LoggedEvents(msgspec.Struct, frozen=True):
    """The events of a log that has ended: the number of the first one, and their bytes."""

    first: int
    events: list[bytes]


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
        self._error: Exception | None = None
        self._is_changed = asyncio.Event()
        self.num_bytes = 0

    @classmethod
    def ended(cls, logged: LoggedEvents) -> "EventLog":
        """Returns a log with these events that has ended."""
        log = cls(0)
        log._first, log._events = logged.first, deque(logged.events)
        log._is_ended = True
        return log

    @property
    def events(self) -> LoggedEvents:
        """The events in the buffer."""
        return LoggedEvents(self._first, list(self._events))

    def append(self, event: bytes) -> None:
        """Adds an encoded event, with the next number."""
        self._events.append(event)
        self.num_bytes += len(event)
        while self.num_bytes > self._max_bytes and len(self._events) > 1:
            self.num_bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Ends the log: followers get no further events, or `error`."""
        self._is_ended = True
        self._error = error
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
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return
            await self._is_changed.wait()

    def _wake(self) -> None:
        self._is_changed.set()
        self._is_changed = asyncio.Event()
