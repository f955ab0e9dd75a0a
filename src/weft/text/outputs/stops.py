"""Finds stop strings in text that arrives in pieces, and holds back text that may begin one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that may be emitted now, and the stop string that ended the answer, if any."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Searches one answer's text for its stop strings.

    The stop string that is complete first wins; of stop strings that end at the same place, the one listed first. State
    is the last `longest - 1` characters, however long the answer grows.
    """

    __slots__ = ("_is_included", "_num_held", "_stops", "_tail")

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        self._stops = tuple(stops)
        self._is_included = is_included
        self._num_held = max((len(stop) for stop in stops), default=1) - 1
        self._tail = ""

    def push(self, text: str, *, is_searched: bool = True) -> StopMatch:
        """Adds a piece of text.

        With `is_searched` False, no stop string ends in this piece, because `min_tokens` is not reached yet; a stop
        string that begins in this piece may end in a later piece.
        """
        if not self._stops:
            return StopMatch(text)
        whole = self._tail + text
        num_known = len(self._tail)
        match = self._earliest(whole, num_known) if is_searched and text else None
        if match is not None:
            return self._end(whole, num_known, *match)
        cut = max(0, len(whole) - self._num_held)
        self._tail = whole[cut:]
        # If the stop string is included, emitted text never has to be taken back.
        return StopMatch(text if self._is_included else whole[:cut])

    def flush(self) -> str:
        """The text held back, at the end of the answer."""
        held = "" if self._is_included else self._tail
        self._tail = ""
        return held

    def _earliest(self, whole: str, num_known: int) -> tuple[int, str] | None:
        """Returns the end of the stop string that completes first, and the stop string."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            start = whole.find(stop, max(0, num_known - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = start + len(stop), stop
        return best

    def _end(self, whole: str, num_known: int, end: int, stop: str) -> StopMatch:
        self._tail = ""
        if self._is_included:
            return StopMatch(whole[num_known:end], stop)
        return StopMatch(whole[: end - len(stop)], stop)
