"""`FlowControl`: requests wait until the pool has capacity. Events trigger their dispatch: a request arrives, ends or
gets its first token; an endpoint reports its load, joins or leaves.

The object belongs to one event loop.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from itertools import chain
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, Protocol

from weft.epp.flow.bands import Band, Bands, Occupancy
from weft.epp.flow.eviction import Evictor
from weft.epp.flow.item import Item, ItemHeap, Outcome
from weft.epp.flow.policies import FlowParts
from weft.epp.flow.rate import DispatchRate
from weft.epp.flow.series import FlowSeries
from weft.epp.request.values import Drop, Refused

# Maximum number of decisions (or timeouts) handled in one turn of the event loop, so that other tasks wait no longer.
_MAX_A_TURN: Final = 8
_MAX_TURN_S: Final = 0.005
_MAX_ENDS_A_TURN: Final = 256
# Period of the check for capacity that appears without an event, such as load that turns stale.
_LOOK_AGAIN_S: Final = 1.0
_MAX_RETRY_AFTER_S: Final = 60

_Refusal = tuple[int, str, Drop]
_SHUTTING_DOWN: Final[_Refusal] = (
    503,
    "the endpoint picker is shutting down",
    Drop.SHUTTING_DOWN,
)
_REFUSALS: Final[Mapping[Outcome, _Refusal]] = MappingProxyType({
    Outcome.REJECTED_CAPACITY: (429, "the queue is full: the maximum number of requests is waiting", Drop.SATURATED),
    Outcome.REJECTED_NO_ENDPOINTS: (
        503, "no endpoint is available, and the queue is full", Drop.NO_ENDPOINTS,
    ),
    Outcome.REJECTED_OTHER: _SHUTTING_DOWN,
    Outcome.EVICTED_TTL: (429, "the pool stayed saturated until the request's time to live ended", Drop.TTL_EXPIRED),
    Outcome.EVICTED_NO_ENDPOINTS: (
        503, "no endpoint became available until the request's time to live ended", Drop.NO_ENDPOINTS,
    ),
    Outcome.EVICTED_OTHER: (429, "the queue is full, and another request displaced this one", Drop.SATURATED),
})  # fmt: skip


class Room(Protocol):
    """The state of the pool that flow control reads."""

    @property
    def is_empty(self) -> bool:
        """True if the pool has no endpoints."""

    def saturation(self) -> float:
        """Returns the saturation; 1.0 and above mean that there is no capacity."""

    def want_loads(self, *, is_wanted: bool) -> None:
        """Switches the shortest poll interval on or off; it is on while requests wait."""


class FlowControl:
    """Flow control of one pool."""

    def __init__(
        self, parts: FlowParts, room: Room, series: FlowSeries, clock: Callable[[], float]
    ) -> None:
        self._parts = parts
        self._room = room
        self._series = series
        self._clock = clock
        self._bands = Bands(parts, clock())
        self._used = Occupancy(parts.limits)
        self._deadlines = ItemHeap()
        self._timer: asyncio.TimerHandle | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._is_woken = False
        self._is_closed = False
        self._was_empty = room.is_empty
        self._rate = DispatchRate()
        self._waiting_since = 0.0  # while requests wait: arrival of the first
        self.evictor: Evictor | None = None
        if parts.eviction is not None:
            self.evictor = Evictor(parts.eviction, series, clock)

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests."""
        return self._used.num_requests

    async def admit(self, item: Item) -> Any:
        """Waits until the pool has capacity for the request and returns the result of `item.place`. Raises
        `Refused`.
        """
        started = perf_counter()
        band = self._bands.of(item.priority, self._clock())
        outcome = Outcome.REJECTED_OTHER if self._is_closed else self._make_room(item, band)
        if outcome is not None:
            self._series.enqueued(item, perf_counter() - started, outcome)
            self._series.ended(item, outcome, self._clock() - item.arrived)
            raise self._refusal(_REFUSALS[outcome])
        if not self._used.num_requests:
            self._waiting_since = item.arrived
        band.add(item)
        self._used.add(1, item.num_bytes)
        self._series.enqueued(item, perf_counter() - started, None)
        self._pump()
        if item.is_waiting:
            if not item.is_timed:  # the pool may have become empty just now
                self._watch(item, band)
            self._arm()
        try:
            return await item.done
        except asyncio.CancelledError:
            if item.is_waiting:
                self._end(item, Outcome.EVICTED_CANCELLED)
            elif not item.done.cancelled() and item.done.exception() is None:
                item.abandon(item.done.result())  # the request was dispatched just before
            raise
        finally:
            item.let_go()

    def wake(self) -> None:
        """Schedules a dispatch cycle for the next turn of the event loop; called when the pool may have capacity
        again.
        """
        if self._used.num_requests and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def sweep(self) -> None:
        """Removes unused bands; called every few seconds."""
        self._bands.sweep(self._clock())

    def refresh_series(self) -> None:
        """Updates the gauges."""
        self._series.refresh(self._bands, self._used, self._clock())

    def close(self) -> None:
        """Refuses all waiting requests and all later ones."""
        self._is_closed = True
        for band in self._bands:
            for item in list(band):
                self._refuse(item, Outcome.EVICTED_OTHER, _SHUTTING_DOWN)

    # -- capacity -------------------------------------------------------------------------------

    def _make_room(self, item: Item, band: Band) -> Outcome | None:
        """Evicts waiting requests if a limit leaves no room for `item`. Returns the outcome of the refusal if even that
        is not enough; otherwise None.

        The flows of a band share the band's limit. Bands of higher priority take room of the global limit from lower
        ones.
        """
        leaving: dict[Item, None] = {}
        for used, others in (
            (band.used, band.surplus(item)),
            (self._used, chain(self._bands.below(item.priority), band.surplus(item))),
        ):
            num_bytes = item.num_bytes - sum(each.num_bytes for each in leaving)
            while not used.has_room(1 - len(leaving), num_bytes):
                other = next(others, None) if used.can_have(item.num_bytes) else None
                if other is None:
                    break
                if other not in leaving:
                    leaving[other] = None
                    num_bytes -= other.num_bytes
            if not used.has_room(1 - len(leaving), num_bytes):
                is_empty = self._room.is_empty
                return Outcome.REJECTED_NO_ENDPOINTS if is_empty else Outcome.REJECTED_CAPACITY
        for other in leaving:
            self._refuse(other, Outcome.EVICTED_OTHER, _REFUSALS[Outcome.EVICTED_OTHER])
        return None

    # -- dispatch -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Dispatches requests while there is capacity, a limited number per turn of the event loop."""
        self._is_woken = False
        if self._room.is_empty != self._was_empty:
            self._change_regime()
        if not self._used.num_requests or self._room.is_empty:
            return
        started = perf_counter()
        num_left = _MAX_A_TURN
        while num_left and self._used.num_requests and (item := self._next()) is not None:
            self._dispatch(item)
            num_left = 0 if perf_counter() - started > _MAX_TURN_S else num_left - 1
        if not num_left:
            self.wake()
        self._series.cycle_duration.observe(perf_counter() - started)
        if self._used.num_requests:
            self._room.want_loads(is_wanted=True)
            self._plan_look()

    def _next(self) -> Item | None:
        """Returns the next request of the highest band with waiting requests; None if the saturation has reached the
        band's ceiling.
        """
        saturation = self._room.saturation()
        bands = list(self._bands)
        ceilings = self._parts.usage_limit.ceilings([band.priority for band in bands], saturation)
        for band, ceiling in zip(bands, ceilings, strict=True):
            if not band:
                continue
            if saturation < ceiling:
                return band.next(self._clock())
            if self.evictor is not None:
                self.evictor.reclaim(band.priority, len(band), saturation, ceiling)
            break  # lower bands must wait too, whatever their ceilings
        return None

    def _dispatch(self, item: Item) -> None:
        # The waiting task was cancelled and will report that; its flow keeps its turn.
        if item.done.done():
            self._end(item, Outcome.EVICTED_CANCELLED)
            return
        now = self._clock()
        if item.is_timed:
            self._rate.dispatched(item.arrived, now)
        self._bands.of(item.priority, now).served(item)
        self._end(item, Outcome.DISPATCHED)
        try:
            item.done.set_result(item.place())
        except Exception as error:  # noqa: BLE001 - raised where the request is waited for
            item.done.set_exception(error)

    def _plan_look(self) -> None:
        if self._look_again is None:
            loop = asyncio.get_running_loop()
            self._look_again = loop.call_later(_LOOK_AGAIN_S, self._look)

    def _look(self) -> None:
        self._look_again = None
        self.wake()

    def _rest(self) -> None:
        """Cancels the timers and the fast polling of load; called when no request waits."""
        self._room.want_loads(is_wanted=False)
        for timer in (self._look_again, self._timer):
            if timer is not None:
                timer.cancel()
        self._look_again = self._timer = None

    # -- end of a wait --------------------------------------------------------------------------

    def _watch(self, item: Item, band: Band) -> None:
        """Sets the deadline of a waiting request: the time to live for the pool's present state (with or without
        endpoints) counts from now, but the whole wait is at most the longer of the two times to live.
        """
        here_s = min(band.parts.ttl_s, item.own_ttl_s)
        nowhere_s = min(self._parts.no_endpoint_ttl_s, item.own_ttl_s)
        budget_s = nowhere_s if self._was_empty else here_s
        item.deadline = min(self._clock() + budget_s, item.arrived + max(here_s, nowhere_s))
        item.is_timed = True
        self._deadlines.push(item, item.deadline)

    def _change_regime(self) -> None:
        """Sets new deadlines for all waiting requests, because the pool got its first endpoint or lost its last one."""
        self._was_empty = self._room.is_empty
        self._deadlines = ItemHeap()
        for band in self._bands:
            for item in band:
                self._watch(item, band)
        self._arm()

    def _arm(self) -> None:
        """Sets the timer to the earliest deadline."""
        head = self._deadlines.head()
        if head is None or math.isinf(head.deadline):
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, head.deadline - self._clock())
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        expired = Outcome.EVICTED_NO_ENDPOINTS if self._room.is_empty else Outcome.EVICTED_TTL
        for _ in range(_MAX_ENDS_A_TURN):
            head = self._deadlines.head()
            if head is None or head.deadline > now:
                break
            self._refuse(head, expired, _REFUSALS[expired])
        self._arm()

    def _refuse(self, item: Item, outcome: Outcome, why: _Refusal) -> None:
        self._end(item, outcome)
        if not item.done.done():
            item.done.set_exception(self._refusal(why))

    def _refusal(self, why: _Refusal) -> Refused:
        status, message, reason = why
        return Refused(status, message, reason, retry_after_s=self._retry_after_s(reason))

    def _retry_after_s(self, reason: Drop) -> int | None:
        """Returns the estimated seconds until the requests that wait now are dispatched, at the recent rate. While
        there is no rate, returns the time that requests have waited so far. None during a shutdown.
        """
        if reason is Drop.SHUTTING_DOWN:
            return None
        now = self._clock()
        if not self._used.num_requests:
            return 1
        per_second = self._rate.per_second(now)
        if per_second is None:
            expected_s = now - self._waiting_since
        else:
            expected_s = self._used.num_requests / max(per_second, 1e-6)
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(expected_s)))

    def _end(self, item: Item, outcome: Outcome) -> None:
        """Removes a request from its queue, and records the outcome of its wait."""
        now = self._clock()
        self._bands.of(item.priority, now).remove(item, now)
        self._used.add(-1, -item.num_bytes)
        if item.is_timed:
            self._deadlines.left(item)
        if not self._used.num_requests:
            self._rest()
        self._series.ended(item, outcome, now - item.arrived)
