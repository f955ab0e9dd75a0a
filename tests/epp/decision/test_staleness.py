"""Stale endpoints are found without a look at each of them for each decision."""

from tests.epp.pools import make_pool, spec
from weft.epp.decision.staleness import Staleness
from weft.epp.pool.endpoint import Load

MAX_AGE_S = 3.0


def test_each_endpoint_gets_stale_at_its_own_time():
    """Whatever was found before; a report makes it fresh again."""
    pool = make_pool(spec(1), spec(2))
    first, second = pool
    first.observe(Load(), polled_at=100.0)
    second.observe(Load(), polled_at=101.0)
    staleness = Staleness(pool, MAX_AGE_S)
    found = [list(staleness.among(pool.ready, now)) for now in (102.0, 103.0, 103.5, 104.5)]
    assert found == [[], [], [first], [first, second]]
    first.observe(Load(), polled_at=104.0)
    assert list(staleness.among(pool.ready, 104.5)) == [second]
    second.observe(Load(), polled_at=104.0)
    assert list(staleness.among(pool.ready, 107.0)) == []


def test_an_endpoint_that_joins_is_stale_until_it_reports():
    """Also if all others were fresh for a while yet."""
    pool = make_pool(spec(1))
    (first,) = pool
    first.observe(Load(), polled_at=100.0)
    staleness = Staleness(pool, MAX_AGE_S)
    assert list(staleness.among(pool.ready, 101.0)) == []
    pool.replace("test", [(spec(1), "10.0.0.1"), (spec(2), "10.0.0.2")])
    _, second = pool
    assert list(staleness.among(pool.ready, 101.0)) == [second]
    assert list(staleness.among([first], 101.0)) == []
