"""`Evictor`: revokes running requests to free capacity for waiting requests of higher priority."""

import heapq
import math
from collections.abc import Callable
from itertools import chain
from typing import Final

from weft.epp.flow.item import Lease
from weft.epp.flow.policies import EvictionParts
from weft.epp.flow.series import FlowSeries

# Pause between the last confirmed eviction of a round and the next round, so that the servers' reports show the
# effect.
GRACE_S: Final = 0.5
# A stream that does not end within this time counts as ended: one hanging stream must not block further evictions.
CONFIRMATION_TIMEOUT_S: Final = 10.0
MAX_A_ROUND: Final = 8


class Evictor:
    """Revokes running requests of lower priority, a few at a time; the next round begins when the revoked requests have
    ended and new load reports are expected.
    """

    def __init__(
        self, parts: EvictionParts, series: FlowSeries, clock: Callable[[], float]
    ) -> None:
        self._parts = parts
        self._series = series
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        # Requests that may be evicted, by priority; searched when the pool is saturated.
        self._evictable: dict[int, dict[int, Lease]] = {}
        # Evicted requests whose streams are still open, with the time of the eviction.
        self._pending: dict[int, float] = {}
        self._quiet_until = -math.inf

    def opened(self, lease: Lease) -> None:
        """Records a request that was sent to an endpoint."""
        self._leases[lease.id] = lease
        if self._parts.filter.accepts(lease):
            self._evictable.setdefault(lease.priority, {})[lease.id] = lease

    def ended(self, lease_id: int) -> None:
        """Records the end of a request, whether it succeeded or failed."""
        self._forget(lease_id)
        issued = self._pending.pop(lease_id, None)
        if issued is not None:
            self._confirmed("confirmed", self._clock() - issued)

    def reclaim(self, priority: int, num_waiting: int, saturation: float, ceiling: float) -> None:
        """Revokes running requests in favour of `num_waiting` requests of a priority whose ceiling is reached."""
        now = self._clock()
        for lease_id in [each for each, issued in self._pending.items()
                         if now - issued > CONFIRMATION_TIMEOUT_S]:  # fmt: skip
            del self._pending[lease_id]
            self._confirmed("timed_out", None)
        if self._pending or now < self._quiet_until or ceiling <= 0 or not self._leases:
            return
        # The load of a single request is unknown: the mean over the running requests is used.
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
