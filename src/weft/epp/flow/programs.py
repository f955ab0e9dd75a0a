"""`Programs`: state of policies per flow. Clients choose flow names, so the number of flows is bounded."""

import math
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

_MAX_PROGRAMS: Final = 10_000


class _Dated(Protocol):
    at: float  # time of the last addition


_Program = TypeVar("_Program", bound=_Dated)


def decayed(amount: float, since_s: float, half_life_s: float) -> float:
    """Amount after exponential decay; unchanged if the half-life is 0."""
    return amount * math.exp2(-since_s / half_life_s) if amount and half_life_s else amount


class Programs(Generic[_Program]):
    """State by flow name, least recently used first. Unused entries are dropped after `ttl_s`; 0 means never."""

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
        """Returns the record of a flow; None if there is none."""
        return self._of.get(name)

    def items(self) -> Iterable[tuple[str, _Program]]:
        """Returns all flows with their records."""
        return self._of.items()

    def used(self, name: str) -> _Program:
        """Returns the record of a flow, and creates it for a new flow."""
        now = self._clock()
        program = self._of.pop(name, None) or self._make(now)
        self._of[name] = program
        self._forget(now)
        return program

    def _forget(self, now: float) -> None:
        """Drops records that were unused for long, from time to time, and the oldest ones if there are too many."""
        if len(self._of) > _MAX_PROGRAMS:
            del self._of[next(iter(self._of))]
        if now - self._swept_at < self._sweep_every_s:
            return
        self._swept_at = now
        limit = now - self._ttl_s
        self._of = {name: each for name, each in self._of.items() if each.at > limit}
