"""Growing pauses between retries, and the log line about a failed attempt."""

import logging

from weft.core.errors import WeftError


class Pauses:
    """Each pause is twice as long as the one before, up to `longest_s`; after a steady run, the first pause is
    next again.
    """

    def __init__(
        self, first_s: float = 0.5, longest_s: float = 60.0, steady_s: float = 60.0
    ) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s

    def next_s(self) -> float:
        """Returns the length of the next pause in seconds."""
        due_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return due_s

    def lasted(self, ran_s: float) -> bool:
        """True if an attempt ran longer than `steady_s` before it failed; the pauses then start from the first
        again.
        """
        is_steady = ran_s > self._steady_s
        if is_steady:
            self._next_s = self._first_s
        return is_steady


def warn_not_started(log: logging.Logger, what: str, error: Exception) -> None:
    """Logs that a start failed and will be retried; an error outside `WeftError` is a defect, so it has a
    traceback.
    """
    is_foreseen = isinstance(error, WeftError)
    log.warning("%s could not be started: %s", what, error, exc_info=not is_foreseen)
