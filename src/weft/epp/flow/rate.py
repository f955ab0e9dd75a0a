"""The rate at which waiting requests are dispatched, as far as it is known."""

import math
from typing import Final

_WINDOW_S: Final = 10.0


class DispatchRate:
    """A decaying count of the requests that waited and were dispatched, with the time that it covers.

    Requests that found room at once say nothing about how fast the pool makes room.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._counted_at = -math.inf
        self._since = 0.0

    def dispatched(self, arrived: float, now: float) -> None:
        """Counts a request that arrived at `arrived` and waited until now."""
        if now - self._counted_at > _WINDOW_S:
            self._count, self._since = 0.0, arrived
        else:
            self._count *= math.exp(-(now - self._counted_at) / _WINDOW_S)
        self._count += 1
        self._counted_at = now

    def per_second(self, now: float) -> float | None:
        """Requests per second; None if none was dispatched lately."""
        age_s = now - self._counted_at
        if age_s > _WINDOW_S:
            return None
        # As much of the window as has passed: a young count would otherwise be divided by time that has not passed.
        covered_s = _WINDOW_S * -math.expm1(-(now - self._since) / _WINDOW_S)
        return self._count * math.exp(-age_s / _WINDOW_S) / covered_s if covered_s > 0 else None
