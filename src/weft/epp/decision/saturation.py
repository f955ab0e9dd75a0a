"""Saturation of the pool: per stage, and as a whole."""

from collections.abc import Callable, Mapping, Sequence

from weft.epp.decision.plugin import Detector
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool
from weft.epp.pool.roles import by_stage

EFFECTIVE = "effective"


class PoolRoom:
    """The saturation that flow control uses: that of the fuller stage, including requests sent since loads were
    reported.
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
        """1.0 and above: no room."""
        return self.by_stage()[EFFECTIVE]

    def by_stage(self) -> dict[str, float]:
        """The highest saturation of each stage."""
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
        """Requests the shortest poll interval while requests wait for room."""
        if is_wanted and not self._pool.loads_wanted:
            self._pool.stir()
        self._pool.loads_wanted = is_wanted
