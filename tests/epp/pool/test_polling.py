"""How often endpoints are polled, in virtual time: seldom while nothing happens, often while requests come."""

import asyncio
from collections.abc import Callable

import pytest

from tests.epp.flow.virtual import now, run, scene, virtually
from tests.epp.pools import bench, pool_of, profile, request
from weft.epp.decision.tickets import Ending
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, Load
from weft.epp.pool.poller import Poller
from weft.epp.pool.pool import Pool


class Source:
    """An endpoint that answers at once, and notes when."""

    port: int | None = None

    def __init__(self, times: list[float]) -> None:
        self._times = times

    async def load(self) -> Load:
        self._times.append(now())
        return Load()

    async def close(self) -> None:
        """Nothing is open."""


def polls(
    stir: Callable[[Pool, int], None], *, num_endpoints: int = 2, interval_s: float = 1.0
) -> list[int]:
    """How often each is polled in ten seconds, in each hundredth of which something may happen."""

    async def main() -> list[int]:
        pool, times = pool_of(num_endpoints), dict[Endpoint, list[float]]()
        poller = Poller(
            pool, PickerMetrics(), lambda each: Source(times.setdefault(each, [])), interval_s
        )
        for number in range(1000):
            stir(pool, number)
            await asyncio.sleep(0.01)
        await poller.close()
        return [len(each) for each in times.values()]

    return run(main)


@pytest.mark.parametrize(("error", "has_traceback"), [(OSError, False), (KeyError, True)])
@virtually
async def test_what_no_server_can_cause_is_logged_with_its_traceback(error, has_traceback, caplog):
    """The endpoint keeps its last load either way, and is polled again."""

    class Failing(Source):
        async def load(self) -> Load:
            await super().load()
            raise error("x")

    times: list[float] = []
    poller = Poller(pool_of(1), PickerMetrics(), lambda _: Failing(times), 1.0)
    await asyncio.sleep(5)
    await poller.close()
    assert len(times) > 1
    assert caplog.text.count("cannot be read") == 1
    assert ("Traceback" in caplog.text) is has_traceback


def nothing(_: Pool, __: int) -> None:
    pass


def requests(pool: Pool, _: int) -> None:
    pool.stir()


def waits(pool: Pool, _: int) -> None:
    pool.loads_wanted = True


@pytest.mark.parametrize(
    ("stir", "interval_s", "num_endpoints", "expected"),
    [
        (nothing, 1.0, 2, 10),
        (requests, 1.0, 2, 100),
        (waits, 1.0, 2, 100),
        (requests, 10.0, 2, 10),  # whose servers are not to be asked often says so
        (requests, 0.1, 2, 200),  # not more often than every 50 ms,
        (requests, 0.02, 2, 500),  # unless that is the interval
        (requests, 1.0, 100, 25),  # all together 250 times a second,
        (requests, 1.0, 300, 10),  # and each once an interval;
        (nothing, 0.1, 100, 25),  # together 250 times also while nothing happens
    ],
)
def test_endpoints_are_polled_while_something_happens(
    stir: Callable[[Pool, int], None], interval_s: float, num_endpoints: int, expected: int
):
    """Ten times as often as while nothing does; bounded by how many there are."""
    found = polls(stir, interval_s=interval_s, num_endpoints=num_endpoints)
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.15)


@virtually
async def test_load_that_is_old_because_nothing_happens_is_not_stale():
    """Between two polls of each of 100 endpoints 0.4 s pass, where the interval is 0.1 s."""
    pool, times = pool_of(100), list[float]()
    poller = Poller(pool, PickerMetrics(), lambda _: Source(times), 0.1)
    await asyncio.sleep(3)
    ages = [now() - each.loaded_at for each in pool if each.loaded_at is not None]
    assert len(ages) == 100
    assert 0.3 < max(ages) < 0.5
    assert not any(each.is_stale(now(), 0.3) for each in pool)
    await poller.close()
    await asyncio.sleep(0.7)
    assert all(each.is_stale(now(), 0.3) for each in pool)


def test_the_first_request_after_a_pause_has_reports_made():
    """Not only when the interval is over; and not all in the same moment."""

    def once(pool: Pool, number: int) -> None:
        if number == 500:
            pool.stir()

    found = polls(once, interval_s=60.0)
    assert found == [2, 2]


@virtually
async def test_every_decision_has_reports_made():
    """Whichever endpoint it is for."""
    pool = pool_of(3)
    made = scene(profile("queue-scorer"), pool)
    for name in "abc":
        await made.send(name, 0.0)
    assert pool.num_stirs == 3


def failing(ending: Ending, status: int, *, reports: bool = False) -> int:
    """How many of thirty go to the first of two endpoints, at which they end at once so; at the other none ends."""
    pool = pool_of(2)
    made = bench(profile("active-request-scorer"), pool)
    first, num_first = next(iter(pool)), 0
    for number in range(30):
        decision = made.pick(request(1, request_id=str(number)))
        assert decision.ticket is not None
        if decision.endpoints[0] == first.host_port:
            num_first += 1
            made.director.on_response_headers(decision.ticket, status)
            made.director.on_end(decision.ticket, ending)
        made.clock.advance(0.01)
        if reports:
            first.observe(Load(), polled_at=made.clock.now)
    return num_first


@pytest.mark.parametrize("status", [503, 200])
def test_a_server_that_fails_what_it_is_sent_is_not_the_least_busy_one(status: int):
    """`active-request-scorer`: what failed counts as if it were under way."""
    assert failing(Ending.ERROR, status) == 15


def test_what_failed_counts_until_the_server_reports_again():
    """Then it is up, whatever failed."""
    assert failing(Ending.ERROR, 503, reports=True) >= 29


def test_what_a_client_did_wrong_does_not_count():
    """Nor does what came to its end."""
    assert failing(Ending.ERROR, 400) >= 29
    assert failing(Ending.NATURAL, 200) >= 29


def test_failures_are_forgotten_where_nobody_reports():
    """As requests are that no report ever shows."""
    pool = pool_of(1)
    made = bench(profile("active-request-scorer"), pool, unseen_ttl_s=10.0)
    ticket = made.pick(request(1)).ticket
    assert ticket is not None
    made.director.on_end(ticket, Ending.ERROR)
    (endpoint,) = pool
    assert len(endpoint.failed) == 1
    made.clock.advance(11)
    made.director.sweep()
    assert not endpoint.failed
