"""Finds the endpoints whose load is unknown or too old, with a look at each only when one may be."""

import math
from collections.abc import Sequence

from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool


class Staleness:
    """The stale endpoints of a pool: those whose load is older than `max_age_s` seconds, apart from pauses of polls."""

    def __init__(self, pool: Pool, max_age_s: float) -> None:
        self._pool = pool
        self._max_age_s = max_age_s
        # No endpoint of `_members` is stale until then: the time of a load only grows.
        self._members: Sequence[Endpoint] = ()
        self._fresh_until = -math.inf

    def among(self, endpoints: Sequence[Endpoint], now: float) -> Sequence[Endpoint]:
        """Returns the stale ones of `endpoints`, which are in the pool."""
        members = self._pool.ready
        if members is self._members and now <= self._fresh_until:
            return ()
        # The pool makes a new list whenever its members change.
        self._members = members
        times = [each.loaded_at for each in members]
        known = [at for at in times if at is not None]
        is_any_unknown = len(known) < len(times) or not known
        self._fresh_until = -math.inf if is_any_unknown else min(known) + self._max_age_s
        return [each for each in endpoints if each.is_stale(now, self._max_age_s)]
