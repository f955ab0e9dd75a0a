import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.doubles.api_server import PODS, ApiServerDouble
from tests.epp.kubernetes.cluster import pod, put_pods
from tests.epp.pools import Clock, until
from weft.core.errors import ConfigError
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.kubernetes.leader_elector import LeaderElector, LeaseTimes

LEASES = "apis/coordination.k8s.io/v1/namespaces/ns/leases"
NAME = "epp-ns-llm.llm-d.ai"
OTHER = {
    "metadata": {"name": NAME, "namespace": "ns", "labels": {"of": "another"}},
    "spec": {
        "holderIdentity": "epp-0_1",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 4,
    },
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def candidates(api: ApiServerDouble, clock: Clock) -> AsyncIterator[list[LeaderElector]]:
    """Three, at one clock."""
    async with AsyncExitStack() as stack:
        found = [LeaderElector("ns", "llm", LeaseTimes(), clock) for _ in range(3)]
        for each in found:
            stack.push_async_callback(each.close)
        yield found


def spec_of(api: ApiServerDouble) -> dict:
    return api.objects[LEASES][NAME]["spec"]


async def test_the_first_leads_and_the_others_wait(api: ApiServerDouble, candidates, clock: Clock):
    """For as long as it renews, however long that is."""
    for _ in range(20):
        for each in candidates:
            await each.try_acquire_or_renew()
        assert [each.is_leader for each in candidates] == [True, False, False]
        clock.advance(2)
    spec = spec_of(api)
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 1)
    assert spec["acquireTime"] < spec["renewTime"]


async def test_a_lease_that_nobody_renews_is_taken_over(
    api: ApiServerDouble, candidates, clock: Clock
):
    """Once it has been seen unchanged for its own time; who held it gave up before."""
    first, second, _ = candidates
    await first.try_acquire_or_renew()
    await second.try_acquire_or_renew()
    clock.advance(9.9)
    assert first.is_leader
    clock.advance(0.2)
    assert not first.is_leader
    clock.advance(4.8)
    await second.try_acquire_or_renew()
    assert not second.is_leader
    clock.advance(0.2)
    await second.try_acquire_or_renew()
    assert second.is_leader
    await first.try_acquire_or_renew()
    assert not first.is_leader
    assert spec_of(api)["leaseTransitions"] == 2


async def test_the_times_that_are_written_are_not_believed(
    api: ApiServerDouble, candidates, clock: Clock
):
    """They are of another clock. What else stands in the Lease stays."""
    api.put(LEASES, json.loads(json.dumps(OTHER)))
    await candidates[0].try_acquire_or_renew()
    assert not candidates[0].is_leader
    clock.advance(15)
    await candidates[0].try_acquire_or_renew()
    assert candidates[0].is_leader
    assert spec_of(api)["leaseTransitions"] == 5
    assert api.objects[LEASES][NAME]["metadata"]["labels"] == {"of": "another"}


async def test_of_many_who_come_at_once_one_leads(candidates):
    """The API server takes one write of a version."""
    await asyncio.gather(*(each.try_acquire_or_renew() for each in candidates))
    assert sum(each.is_leader for each in candidates) == 1


async def test_who_resigns_is_followed_at_once_and_stands_no_more(api: ApiServerDouble, candidates):
    """Nobody waits for the end of a Lease that was given back."""
    first, second, _ = candidates
    await first.try_acquire_or_renew()
    await second.try_acquire_or_renew()
    await first.release()
    assert not first.is_leader
    await first.try_acquire_or_renew()
    assert not first.is_leader
    assert spec_of(api)["holderIdentity"] == ""
    await second.try_acquire_or_renew()
    assert second.is_leader


@pytest.mark.parametrize("status", [401, 403, 409, 429, 500])
async def test_refusals_do_not_unseat_a_leader_in_time(
    api: ApiServerDouble, candidates, clock: Clock, caplog, status: int
):
    """Each is tried again, and logged once."""
    await candidates[0].try_acquire_or_renew()
    for _ in range(3):
        clock.advance(2)
        api.refusals.append((status, ""))
        await candidates[0].try_acquire_or_renew()
        assert candidates[0].is_leader
    assert len([each for each in caplog.messages if f"HTTP {status}" in each]) == 1
    await candidates[0].try_acquire_or_renew()
    clock.advance(9)
    assert candidates[0].is_leader


@pytest.mark.parametrize(
    "lease",
    [
        {"metadata": {"name": NAME}, "spec": {"leaseDurationSeconds": -1}},
        {"metadata": {"name": NAME}, "spec": {"holderIdentity": 7}},
        {"metadata": {"name": NAME, "annotations": {"a": "x" * 300_000}}, "spec": {}},
    ],
)
async def test_a_strange_lease_makes_no_leader(
    api: ApiServerDouble, candidates, caplog, lease: dict
):
    """It is not written over either."""
    api.put(LEASES, lease)
    before = json.dumps(lease)
    await candidates[0].try_acquire_or_renew()
    assert not candidates[0].is_leader
    assert json.dumps(api.objects[LEASES][NAME]) == before
    assert NAME in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_defect_is_logged_with_its_traceback(api: ApiServerDouble, caplog):
    """What servers do is a line; what only a mistake of ours can be must be findable."""
    elector = LeaderElector("ns", "llm", LeaseTimes(), {}.popitem)
    await elector.try_acquire_or_renew()
    await elector.close()
    assert "popitem(): dictionary is empty" in caplog.text
    assert "Traceback" in caplog.text
    assert not elector.is_leader


@pytest.mark.parametrize("seed", range(5))
async def test_there_are_never_two(api: ApiServerDouble, candidates, clock: Clock, seed: int):
    """Whatever the API server does, and however long each candidate is held up; in the end there is one."""
    draw = random.Random(seed)
    terms = set()
    for _ in range(150):
        clock.advance(draw.choice([0, 0.1, 1, 2, 5, 9, 16]))
        if draw.random() < 0.2:
            api.refusals.append((draw.choice([409, 429, 500]), ""))
        standing = draw.sample(candidates, draw.randrange(1, 4))
        await asyncio.gather(*(each.try_acquire_or_renew() for each in standing))
        leaders = [number for number, each in enumerate(candidates) if each.is_leader]
        assert len(leaders) <= 1
        terms.update(leaders)
    api.refusals.clear()
    clock.advance(15)
    for each in (*candidates, *candidates):
        await each.try_acquire_or_renew()
    assert sum(each.is_leader for each in candidates) == 1
    assert len(terms) > 1


async def test_pickers_take_turns(api: ApiServerDouble):
    """One leads; when it is closed the other does."""
    put_pods(api, PODS, pod(1))
    options = PickerOptions(pool_name="llm", pool_namespace="ns", ha_enable_leader_election=True)
    first = await open_picker(options)
    await until(first.may_be_called)
    second = await open_picker(options)
    try:
        assert len(second.pool) == 1
        assert not second.may_be_called()
        await first.close()
        await until(second.may_be_called)
    finally:
        await first.close()
        await second.close()
    assert spec_of(api)["holderIdentity"] == ""


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pool_name": "llm", "endpoints": ("127.0.0.1:8000",)},
        {"endpoint_selector": "a=b", "endpoint_target_ports": "8000"},
    ],
)
def test_there_is_no_election_without_a_pool(given: dict):
    """The Lease is named after it."""
    with pytest.raises(ConfigError, match="needs --pool-name"):
        PickerOptions(ha_enable_leader_election=True, **given)
