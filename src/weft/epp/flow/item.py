"""Waiting requests, the outcomes of their waits, heaps of them, and leases of running requests."""

import asyncio
import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final

from weft.epp.request.slo import Slo
from weft.epp.request.values import Refused

TTL_HEADER: Final = "x-llm-d-request-ttl-ms"


class Outcome(StrEnum):
    """Outcome of a request's wait, with the names of llm-d's reference picker."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A waiting request.

    `place` chooses its endpoint and counts the request there, in one turn of the event loop. `abandon` undoes the
    counting if the waiting task was cancelled meanwhile.
    """

    priority: int
    fairness_id: str
    num_bytes: int
    labels: tuple[str, str, str, str]  # values of the request labels, limited in number
    arrived: float
    place: Callable[[], Any]
    abandon: Callable[[Any], None]
    slo: Slo = field(default_factory=Slo)
    own_ttl_s: float = math.inf  # from the request's header
    deadline: float = math.inf
    is_waiting: bool = False
    is_timed: bool = False  # True while a timer watches its deadline
    done: "asyncio.Future[Any]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def let_go(self) -> None:
        """Drops the reference to the request, which may take megabytes. Heaps may hold the item itself a while
        longer.
        """
        del self.place, self.abandon, self.done


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A running request that flow control dispatched."""

    id: int
    priority: int
    started: float
    revoke: Callable[[], bool]  # revokes the request; returns False if that is impossible


def own_ttl_s(headers: Mapping[str, str]) -> float:
    """Returns the maximum wait in seconds that a request's headers set; infinity without such a header. Raises
    `Refused` for an invalid header.
    """
    text = headers.get(TTL_HEADER)
    if text is None:
        return math.inf
    try:
        ttl_s = float(text) / 1000
    except ValueError:
        ttl_s = math.nan
    if not 0 < ttl_s < math.inf:
        raise Refused(
            400, f"{TTL_HEADER}: must be a number of milliseconds more than 0, got {text[:64]!r}"
        )
    return ttl_s


class ItemHeap:
    """Heap of waiting requests, ordered by a number, smallest first.

    Requests that no longer wait are dropped when they reach the top, and all at once when they are most of the heap. So
    disconnected clients do not make the heap grow.
    """

    _MIN_SWEPT: Final = 32

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._numbers = count()
        self._num_left = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_left

    def push(self, item: Item, order: float) -> None:
        """Adds a request with its number. Among equal numbers, the request added first comes first."""
        heapq.heappush(self._heap, (order, next(self._numbers), item))

    def head(self) -> Item | None:
        """Returns the first request without removing it; None if the heap is empty."""
        while self._heap and not self._heap[0][2].is_waiting:
            heapq.heappop(self._heap)
            self._num_left -= 1
        return self._heap[0][2] if self._heap else None

    def left(self, _: Item) -> None:
        """Counts a request of the heap that no longer waits."""
        self._num_left += 1
        if self._num_left > max(self._MIN_SWEPT, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapq.heapify(self._heap)
            self._num_left = 0
