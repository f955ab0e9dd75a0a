"""`Evictor`: ends requests in flight when others wait for their room."""

import heapq
import math
from collections.abc import Callable
from itertools import chain
from typing import Final

from weft.epp.flow.item import Lease
from weft.epp.flow.policies import EvictionParts
from weft.epp.flow.series import FlowSeries

# After the last of a round has ended, before the next: the servers' reports must have seen it.
GRACE_S: Final = 0.5
# A stream that does not end within this is counted as ended: one that hangs must not stop all others.
CONFIRMATION_TIMEOUT_S: Final = 10.0
MAX_A_ROUND: Final = 8


class Evictor:
    """Ends those of a lower priority, a few at a time. Never twice on the same report of load."""

    def __init__(
        self, parts: EvictionParts, series: FlowSeries, clock: Callable[[], float]
    ) -> None:
        self._parts = parts
        self._series = series
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        # Those that may be ended, by priority: whoever finds the pool full looks among them.
        self._evictable: dict[int, dict[int, Lease]] = {}
        self._pending: dict[int, float] = {}  # those that were ended, and when
        self._quiet_until = -math.inf

    def opened(self, lease: Lease) -> None:
        """A request was sent on."""
        self._leases[lease.id] = lease
        if self._parts.filter.accepts(lease):
            self._evictable.setdefault(lease.priority, {})[lease.id] = lease

    def ended(self, lease_id: int) -> None:
        """A request is over, in whatever way."""
        self._forget(lease_id)
        issued = self._pending.pop(lease_id, None)
        if issued is not None:
            self._confirmed("confirmed", self._clock() - issued)

    def reclaim(self, priority: int, num_waiting: int, saturation: float, ceiling: float) -> None:
        """Make room for `num_waiting` requests of a priority whose ceiling is reached."""
        now = self._clock()
        for lease_id in [each for each, issued in self._pending.items()
                         if now - issued > CONFIRMATION_TIMEOUT_S]:  # fmt: skip
            del self._pending[lease_id]
            self._confirmed("timed_out", None)
        if self._pending or now < self._quiet_until or ceiling <= 0 or not self._leases:
            return
        # What one request takes is not known: the mean of those in flight.
        deficit = saturation - ceiling
        num_wanted = max(1, math.ceil(deficit * len(self._leases) / saturation))
        self._series.reclaim_target.set(deficit)
        victims = heapq.nsmallest(
            min(num_wanted, num_waiting, MAX_A_ROUND),
            chain.from_iterable(
                group.values() for each, group in self._evictable.items() if each < priority
            ),
            key=self._parts.order.key,
        )  # fmt: skip
        for lease in victims:
            if lease.revoke():
                self._forget(lease.id)
                self._pending[lease.id] = now
                self._series.revoked(priority)
        self._series.pending_reclaim.set(len(self._pending))

    def _forget(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None or (group := self._evictable.get(lease.priority)) is None:
            return
        group.pop(lease_id, None)
        if not group:
            del self._evictable[lease.priority]

    def _confirmed(self, outcome: str, seconds: float | None) -> None:
        self._quiet_until = self._clock() + GRACE_S
        self._series.revocation_ended(outcome, seconds)
        self._series.pending_reclaim.set(len(self._pending))
