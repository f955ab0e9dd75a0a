"""Detects a reader that accepts no data for too long, so that writes to it do not block for ever."""

import asyncio
from collections.abc import Callable


class WriteStall:
    """Context manager for each write; `on_stall` is called once when a write takes longer than `timeout_s`.

    One timer serves all writes of an answer: a timer per write was a tenth of the work for a streamed token. Call
    `stop` after the last write. `began_at` is the loop's time at which the latest write began; before the first one,
    the time of construction.
    """

    _is_writing = False
    _timer: asyncio.TimerHandle | None = None
    _has_stalled = False

    def __init__(self, timeout_s: float, on_stall: Callable[[], object]) -> None:
        self._timeout_s = timeout_s
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self.began_at = self._loop.time()

    def __enter__(self) -> None:
        if self._timer is None and not self._has_stalled:
            self._watch(self._timeout_s)
        self.began_at = self._loop.time()
        self._is_writing = True

    def __exit__(self, *_: object) -> None:
        self._is_writing = False

    def touch(self) -> None:
        """Records that a write began now and ended at once."""
        self.began_at = self._loop.time()

    def stop(self) -> None:
        """Cancels the timer; no stall is detected any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, within_s: float) -> None:
        self._timer = self._loop.call_later(within_s, self._check)

    def _check(self) -> None:
        if not self._is_writing:
            self._watch(self._timeout_s)
            return
        remaining_s = self.began_at + self._timeout_s - self._loop.time()
        if remaining_s > 0:
            self._watch(remaining_s)
            return
        self._timer, self._has_stalled = None, True
        self._on_stall()
