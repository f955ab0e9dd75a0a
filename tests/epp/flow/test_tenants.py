"""What flow control is for: tenants that flood harm themselves alone. In virtual time."""

import asyncio
import gc
import tracemalloc
from statistics import quantiles

import pytest

from tests.epp.flow.virtual import ROUND_ROBIN, Scene, arrivals, concurrency, run, scene, virtually
from tests.epp.pools import pool_of

pytestmark = pytest.mark.slow

SLOTS = 8  # an endpoint's; two endpoints serve 16 requests of a second each a second


def p99(made: Scene, prefix: str) -> float:
    return quantiles([each.seconds for each in made.of(prefix) if each.refused is None], n=100)[98]


async def tenants(
    rates: dict[str, float], flow: str, seconds: float = 50, **objectives: str
) -> Scene:
    """Tenants that send at these rates for a while, then the end of all that was sent."""
    made = scene(concurrency(SLOTS, flow), pool_of(2), {"premium": 10, "sheddable": -1})
    await asyncio.gather(
        *(
            arrivals(made, name, per_second=rate, seconds=seconds, service_s=1.0, flow=name,
                     objective=objectives.get(name, ""))
            for name, rate in rates.items()
        )
    )  # fmt: skip
    await made.finish()
    return made


def test_a_flood_leaves_the_other_tenant_as_it_was():
    """One sends ten times what the other does, and more than twice what the pool can: p99 within 1.5 times."""
    alone = run(lambda: tenants({"calm": 4}, ROUND_ROBIN))
    beside = run(lambda: tenants({"calm": 4, "flood": 40}, ROUND_ROBIN))
    assert p99(beside, "calm") <= 1.5 * p99(alone, "calm")
    assert all(each.refused is None for each in beside.of("calm"))
    assert p99(beside, "flood") > 5 * p99(beside, "calm")


def test_without_fairness_it_does_not():
    """So that the rule above measures what makes the difference."""
    alone = run(lambda: tenants({"calm": 4}, ""))
    beside = run(lambda: tenants({"calm": 4, "flood": 40}, ""))
    assert p99(beside, "calm") > 1.5 * p99(alone, "calm")


@virtually
async def test_equal_priority_is_an_equal_share():
    """Two that both want more than half, one of them far more: each has half, within 5 %."""
    made = scene(concurrency(SLOTS, ROUND_ROBIN), pool_of(2))
    for name, rate in (("a", 13.0), ("b", 50.0)):
        made.tasks.append(
            asyncio.create_task(
                arrivals(made, name, per_second=rate, seconds=60, service_s=1.0, flow=name)
            )
        )
    await asyncio.sleep(60)
    placed = list(made.placed)
    made.made.director.close()
    await made.finish()
    share = sum(name.startswith("a") for name in placed) / len(placed)
    assert share == pytest.approx(0.5, rel=0.05)


def test_a_sheddable_flood_costs_the_premium_band_nothing():
    """No request of it is refused, and none waits longer, though all that may wait is full."""
    limits = "maxRequests: 100, defaultRequestTTL: 20s"
    objectives = {"premium": "premium", "flood": "sheddable"}
    alone = run(lambda: tenants({"premium": 8}, limits, premium="premium"))
    beside = run(lambda: tenants({"premium": 8, "flood": 80}, limits, **objectives))
    assert [each for each in beside.of("premium") if each.refused] == []
    assert p99(beside, "premium") <= 1.5 * p99(alone, "premium")
    assert beside.outcomes()["RejectedCapacity"] > 1000
    assert beside.outcomes()["EvictedOther"] > 0  # those that made way for premium


@virtually
async def test_who_waits_costs_little():
    """Ten thousand requests that wait, of a kilobyte each: under 100 MB."""
    limits = "defaultPriorityBand: {maxRequests: 20k}"
    made = scene(concurrency(1, limits))
    made.send("first", 10.0)
    await asyncio.sleep(1)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(10_000):
        text = f"{number:>1000}"
        made.send(str(number), 0.0, flow=str(number % 100), cache_salt=text, num_body_bytes=1000)
    await asyncio.sleep(1)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.made.director.num_waiting == 10_000
    made.made.director.close()
    await asyncio.wait(made.tasks)
    assert after - before < 100e6
