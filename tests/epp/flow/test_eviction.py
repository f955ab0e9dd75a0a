"""What looking for requests to end costs those who find the pool full."""

from weft.epp.flow.eviction import Evictor
from weft.epp.flow.item import Lease
from weft.epp.flow.policies import EvictionParts
from weft.epp.flow.series import FlowSeries
from weft.epp.metrics.series import PickerMetrics


class Counting:
    """Accepts every second priority, and counts how often it is asked for anything."""

    def __init__(self) -> None:
        self.num_calls = 0

    def accepts(self, lease: Lease) -> bool:
        self.num_calls += 1
        return lease.priority % 2 == 0

    def key(self, lease: Lease) -> tuple[float, ...]:
        self.num_calls += 1
        return (lease.started,)


def test_requests_that_may_not_be_ended_are_not_looked_at():
    """However many are in flight, and however often somebody finds no room."""
    policy = Counting()
    evictor = Evictor(
        EvictionParts(filter=policy, order=policy), FlowSeries(PickerMetrics(), "p"), lambda: 0.0
    )
    ended: list[int] = []

    def opened(number: int, priority: int) -> None:
        def revoke() -> bool:
            ended.append(number)
            return True

        evictor.opened(Lease(id=number, priority=priority, started=number, revoke=revoke))

    for number in range(1000):
        opened(number, 1 + number % 2 * 9)  # of 1 and 10
    before = policy.num_calls
    for _ in range(100):
        evictor.reclaim(5, 1, 1.0, 0.9)
    assert policy.num_calls == before
    opened(1000, 0)
    evictor.ended(1000)
    opened(1001, 2)
    evictor.reclaim(5, 1, 1.0, 0.9)
    assert ended == [1001]
