"""Saturation of the pool, as a whole and per stage."""

from collections.abc import Callable, Mapping, Sequence

from weft.epp.decision.plugin import Detector
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool
from weft.epp.pool.roles import by_stage

EFFECTIVE = "effective"


class PoolRoom:
    """The pool's saturation for flow control: the saturation of the fuller stage, including the requests sent since the
    last load reports.
    """

    def __init__(self, pool: Pool, detector: Detector, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._detector = detector
        self._clock = clock
        self._members: Sequence[Endpoint] = ()
        self._stages: Mapping[str, Sequence[Endpoint]] = {}

    @property
    def is_empty(self) -> bool:
        """True if the pool has no endpoints."""
        return not self._pool.ready

    def saturation(self) -> float:
        """Returns the saturation; 1.0 and above mean that there is no capacity."""
        return self.by_stage()[EFFECTIVE]

    def by_stage(self) -> dict[str, float]:
        """Returns the saturation of each stage, and under `EFFECTIVE` the highest of them."""
        members = self._pool.ready
        if members is not self._members:  # the pool creates a new list whenever its members change
            self._members, self._stages = members, by_stage(members)
        now = self._clock()
        is_apart = len(self._stages) > 1
        rated = {
            stage: self._detector.expected_saturation(endpoints, now, stage if is_apart else None)
            for stage, endpoints in self._stages.items()
        }
        return rated | {EFFECTIVE: max(rated.values(), default=1.0)}

    def want_loads(self, *, is_wanted: bool) -> None:
        """Switches the shortest poll interval on or off; it is on while requests wait."""
        if is_wanted and not self._pool.loads_wanted:
            self._pool.stir()
        self._pool.loads_wanted = is_wanted
