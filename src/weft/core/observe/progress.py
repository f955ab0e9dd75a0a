"""Progress of a server's start: one object, which displays read repeatedly."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from weft.core.observe.readable import format_bytes, format_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Loaded bytes and total bytes.

    `bytes_per_second` and `seconds_left` are known once some bytes have been loaded.
    """

    loaded_bytes: int
    total_bytes: int
    bytes_per_second: int = 0
    seconds_left: float | None = None


class Progress:
    """Progress of one start. One thread at a time writes the progress.

    `fraction` is the done part of the start, 0 to 1.
    """

    def __init__(
        self, started: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._started = clock() if started is None else started
        self._ended: float | None = None
        self._first: tuple[float, int] | None = None  # time and loaded bytes at the first report
        self._share = (0.0, 1.0)  # fractions of the whole start at which this phase begins and ends
        self.phase = "starting"
        self._phase_started = self._started
        self.fraction = 0.0
        self.loading: Loading | None = None

    def enter(self, phase: str, begin: float, end: float = 1.0) -> None:
        """Begins a phase that covers the fractions `begin` to `end` of the whole start."""
        self.phase, self.fraction, self._share = phase, begin, (begin, end)
        self._phase_started, self._first, self.loading = self._clock(), None, None

    def load(self, loaded_bytes: int, total_bytes: int) -> None:
        """Records how many bytes of this phase are loaded."""
        now, total_bytes = self._clock(), max(total_bytes, 1)
        loaded_bytes = min(loaded_bytes, total_bytes)
        if self._first is None:
            self._first = (now, loaded_bytes)
        taken_s, taken = now - self._first[0], loaded_bytes - self._first[1]
        pace = taken / taken_s if taken_s > 0 else 0.0
        self.loading = Loading(
            loaded_bytes=loaded_bytes,
            total_bytes=total_bytes,
            bytes_per_second=int(pace),
            seconds_left=round((total_bytes - loaded_bytes) / pace, 1) if pace > 0 else None,
        )
        begin, end = self._share
        self.fraction = begin + (end - begin) * loaded_bytes / total_bytes

    def finish(self) -> None:
        """Marks the start as complete."""
        self.enter("ready", 1.0)
        self._ended = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the start took; before its end, seconds since its begin."""
        return (self._clock() if self._ended is None else self._ended) - self._started

    def describe(self) -> str:
        """Returns the current phase, with its bytes or its duration, as text."""
        loading = self.loading
        if loading is None:
            return f"{self.phase}, {self._clock() - self._phase_started:.1f} s"
        loaded, total = loading.loaded_bytes, loading.total_bytes
        parts = [
            self.phase,
            f"{format_bytes(loaded)} of {format_bytes(total)}",
            f"{100 * loaded // total} %",
        ]
        if loading.seconds_left is not None:
            pace, left = format_bytes(loading.bytes_per_second), format_left(loading.seconds_left)
            parts += [f"{pace}/s", f"{left} left"]
        return ", ".join(parts)
