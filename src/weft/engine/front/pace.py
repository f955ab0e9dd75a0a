"""`Pace`: how often a stream tells its news. What a token costs to tell is paid once an interval, not once a token."""

from collections.abc import Callable
from typing import Protocol

from weft.engine.front.open_requests import OpenRequest


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Have it not come."""
        ...


class Loop(Protocol):
    """What is asked of an event loop: its clock, and a call at a time of that clock."""

    def time(self) -> float:
        """Seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call back when it is that time."""
        ...


class Pace:
    """Wakes the readers of all streams.

    A stream that has told nothing for `interval_s` tells its news at once, and so do answers that begin
    and end. What comes sooner waits for the rest of the interval and leaves in one piece. So a model
    whose steps take longer is never waited for, and no token waits longer than the interval.
    One timer serves all: who waits when it is due goes with it, a little early.
    """

    def __init__(self, interval_s: float, loop: Loop) -> None:
        self._interval_s = interval_s
        self._loop = loop
        self._waiting: dict[OpenRequest, None] = {}  # in the order in which they began to wait
        self._timer: Timer | None = None
        self._due_at = 0.0  # of the timer

    def tell_now(self, opened: OpenRequest) -> None:
        """Wake the reader."""
        self._waiting.pop(opened, None)
        opened.tell(self._loop.time())

    def tell_soon(self, opened: OpenRequest) -> None:
        """Wake the reader now or when the interval since it was last woken is over."""
        if opened in self._waiting or opened.has_news.is_set():
            return
        now = self._loop.time()
        due_at = opened.told_at + self._interval_s
        if due_at <= now:
            opened.tell(now)
            return
        self._waiting[opened] = None
        if self._timer is None or due_at < self._due_at:
            self._wait_until(due_at)

    def forget(self, opened: OpenRequest) -> None:
        """The reader has gone."""
        self._waiting.pop(opened, None)

    def _wait_until(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = self._loop.call_at(due_at, self._tell_waiting)

    def _tell_waiting(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        now = self._loop.time()
        for opened in waiting:
            opened.tell(now)
