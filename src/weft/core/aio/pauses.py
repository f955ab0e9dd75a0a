"""Growing pauses before the next try of what has failed, and what is said of it."""

import logging

from weft.core.errors import WeftError


class Pauses:
    """Each is twice as long as the one before, up to the longest; after what lasted, the first is next again."""

    def __init__(
        self, first_s: float = 0.5, longest_s: float = 60.0, steady_s: float = 60.0
    ) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s

    def next_s(self) -> float:
        """The length of the pause that is due now."""
        due_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return due_s

    def lasted(self, ran_s: float) -> bool:
        """Whether a try that ran for so long before it failed had come to be steady."""
        is_steady = ran_s > self._steady_s
        if is_steady:
            self._next_s = self._first_s
        return is_steady


def warn_not_started(log: logging.Logger, what: str, error: Exception) -> None:
    """It will be tried again; with a traceback where the error is none of ours, which only a defect raises."""
    is_foreseen = isinstance(error, WeftError)
    log.warning("%s could not be started: %s", what, error, exc_info=not is_foreseen)
