"""`Programs`: records that flow-control policies keep per flow. Their number is bounded, because clients choose the
names of flows.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

_MAX_PROGRAMS: Final = 10_000


class _Dated(Protocol):
    at: float  # time of the last addition


_Program = TypeVar("_Program", bound=_Dated)


def decayed(amount: float, since_s: float, half_life_s: float) -> float:
    """Returns the amount after exponential decay over `since_s`; unchanged if the half-life is 0."""
    return amount * math.exp2(-since_s / half_life_s) if amount and half_life_s else amount


class Programs(Generic[_Program]):
    """Records by flow name, least recently used first. A record that is not used for `ttl_s` is dropped; 0 means
    never.
    """

    def __init__(
        self,
        make: Callable[[float], _Program],
        clock: Callable[[], float],
        *,
        ttl_s: float,
        sweep_every_s: float,
    ) -> None:
        self._make = make
        self._clock = clock
        self._ttl_s = ttl_s or math.inf
        self._sweep_every_s = sweep_every_s
        self._swept_at = -math.inf
        self._of: dict[str, _Program] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, name: str) -> _Program | None:
        """Returns the record of a flow; None if the flow has no record."""
        return self._of.get(name)

    def items(self) -> Iterable[tuple[str, _Program]]:
        """Returns the name and the record of each flow."""
        return self._of.items()

    def used(self, name: str) -> _Program:
        """Returns the record of a flow and marks it as used; creates the record if there is none."""
        now = self._clock()
        program = self._of.pop(name, None) or self._make(now)
        self._of[name] = program
        self._forget(now)
        return program

    def _forget(self, now: float) -> None:
        """From time to time, drops records that were not used for long, and the least recently used ones above the
        maximum number.
        """
        if len(self._of) > _MAX_PROGRAMS:
            del self._of[next(iter(self._of))]
        if now - self._swept_at < self._sweep_every_s:
            return
        self._swept_at = now
        limit = now - self._ttl_s
        self._of = {name: each for name, each in self._of.items() if each.at > limit}
