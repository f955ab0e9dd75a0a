"""Watches the writes to one reader: one that takes nothing for too long must not hold work behind it for ever."""

import asyncio
from collections.abc import Callable


class WriteStall:
    """Each write runs inside `with`; `on_stall` is called, once, when one takes longer than `timeout_s`.

    One timer for all the writes of an answer: one around each of them was a tenth of what we do for a
    streamed token. `stop` it behind the last. `began_at` is when the latest write began, on the loop's
    clock; before the first, when this was made.
    """

    def __init__(self, timeout_s: float, on_stall: Callable[[], object]) -> None:
        self._timeout_s = timeout_s
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self.began_at = self._loop.time()
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._has_stalled = False

    def __enter__(self) -> None:
        if self._timer is None and not self._has_stalled:
            self._watch(self._timeout_s)
        self.touch()
        self._is_writing = True

    def __exit__(self, *_: object) -> None:
        self._is_writing = False

    def touch(self) -> None:
        """Note a write that began now, and took no time."""
        self.began_at = self._loop.time()

    def stop(self) -> None:
        """Watch no longer."""
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
