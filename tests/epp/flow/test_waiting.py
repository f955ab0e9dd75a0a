"""Requests wait for room, and each wait ends in one way: sent on, refused, or given up."""

import asyncio
import gc
import weakref

import pytest

from tests.epp.flow.virtual import Scene, concurrency, now, report, run, scene, virtually
from tests.epp.pools import make_pool, pool_of, sample, spec
from weft.epp.decision.tickets import Ending
from weft.epp.flow.series import IDLE_FLOW_S
from weft.epp.pool.endpoint import EndpointSpec, Load
from weft.epp.request.values import Drop, Refused


def put(made: Scene, *specs: EndpointSpec) -> None:
    """Make these the pool's endpoints."""
    made.made.pool.replace("test", [(each, each.address) for each in specs])


def refusal(made: Scene, name: str) -> tuple[float, Refused]:
    (result,) = made.of(name)
    assert result.refused is not None
    return result.seconds, result.refused


@virtually
async def test_a_request_is_sent_when_another_ends():
    """At that moment, in the order in which they came."""
    made = scene(concurrency(2))
    for name in "abcd":
        made.send(name, 3.0)
    await made.finish()
    assert [round(each.seconds, 6) for each in made.results] == [3.0, 3.0, 6.0, 6.0]
    assert made.placed == ["a", "b", "c", "d"]
    assert made.outcomes() == {"Dispatched": 4}


class Text(str):
    """Text whose end can be seen."""

    __slots__ = ("__weakref__",)


@virtually
async def test_a_request_that_waits_no_longer_is_let_go():
    """Its bytes count no more among those that are held, so they must be gone, be others still waiting."""
    made = scene(concurrency(1))
    prompts = [Text(name) for name in ("goes", "leaves", "waits")]
    let_go = [weakref.ref(each) for each in prompts]
    made.send("first", 2.0)
    goes, leaves, waits = [made.send(str(each), 9.0, text=each) for each in prompts]
    prompts.clear()
    await asyncio.sleep(1.0)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    await asyncio.sleep(2.0)
    made.decisions.clear()
    goes.cancel()
    made.tasks = [waits]
    del goes, leaves
    await asyncio.sleep(0)
    gc.collect()
    assert [each() for each in let_go] == [None, None, "waits"]
    waits.cancel()


@virtually
async def test_all_that_fits_is_sent_at_once():
    """Not one a tick: a hundred that came in one moment leave in the same."""
    made = scene(concurrency(100))
    for number in range(100):
        made.send(str(number), 1.0)
    await made.finish()
    made.results.clear()
    for number in range(200):
        made.send(str(number), 1.0)
    await made.finish()
    assert {round(each.seconds, 6) for each in made.results[:100]} == {1.0}
    assert {round(each.seconds, 6) for each in made.results[100:]} == {2.0}


@virtually
async def test_a_wait_ends_at_its_ttl_and_not_at_a_sweep():
    """429, and how long until another try may be worth it."""
    made = scene(concurrency(1, "defaultRequestTTL: 1500ms"))
    made.send("a", 10.0)
    made.send("b")
    await asyncio.sleep(0.7)
    made.send("c")
    await made.finish()
    seconds, refused = refusal(made, "b")
    assert (refused.status, refused.reason) == (429, Drop.TTL_EXPIRED)
    assert 1 <= refused.retry_after_s <= 60
    assert [seconds, refusal(made, "c")[0]] == pytest.approx([1.5, 1.5])
    assert made.outcomes() == {"Dispatched": 1, "EvictedTTL": 2}


@virtually
async def test_a_request_may_say_how_long_it_waits():
    """Less than others; more it does not get."""
    made = scene(concurrency(1, "defaultRequestTTL: 2s"))
    made.send("a", 10.0)
    made.send("b", headers={"x-llm-d-request-ttl-ms": "250"})
    made.send("c", headers={"x-llm-d-request-ttl-ms": "60000"})
    await made.finish()
    assert [refusal(made, name)[0] for name in "bc"] == pytest.approx([0.25, 2.0])


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "nan", "inf"])
@virtually
async def test_a_ttl_that_is_none_is_refused(text: str):
    """By the header's name."""
    made = scene(concurrency(1))
    made.send("a", headers={"x-llm-d-request-ttl-ms": text})
    await made.finish()
    _, refused = refusal(made, "a")
    assert refused.status == 400
    assert "x-llm-d-request-ttl-ms: must be a number of milliseconds" in refused.message


@virtually
async def test_an_empty_pool_is_waited_for():
    """With a TTL of its own; then it is 503."""
    made = scene(concurrency(1, "defaultRequestTTL: 1s, noEndpointRequestTTL: 5s"), pool_of(0))
    made.send("a")
    await asyncio.sleep(2)
    made.send("b")
    await asyncio.sleep(3.5)
    put(made, spec(1))
    await made.finish()
    seconds, refused = refusal(made, "a")
    assert seconds == pytest.approx(5.0)
    assert (refused.status, refused.reason) == (503, Drop.NO_ENDPOINTS)
    assert made.of("b")[0].seconds == pytest.approx(4.5)
    assert made.outcomes() == {"EvictedNoEndpoints": 1, "Dispatched": 1}


@virtually
async def test_a_pool_that_empties_gives_another_budget_and_no_endless_one():
    """From then on, and in all no more than the longer of the two."""
    made = scene(concurrency(1, "defaultRequestTTL: 2s, noEndpointRequestTTL: 5s"))
    made.send("a", 100.0)
    made.send("b")
    await asyncio.sleep(1)
    put(made)
    for _ in range(5):
        await asyncio.sleep(1)
        put(made, spec(1), spec(2))
        for endpoint in made.made.pool:  # as full as the first one
            made.made.assembly.plugins["inflight-load-producer"]._num_requests[endpoint] = 1
        await asyncio.sleep(0.5)
        put(made)
    made.tasks[0].cancel()
    await asyncio.wait(made.tasks)
    seconds, refused = refusal(made, "b")
    assert (round(seconds, 6), refused.status) == (5.0, 503)


def test_a_full_band_refuses_and_others_do_not():
    """By requests and by bytes; 503 where there is no endpoint that could make room."""

    async def main(pool: int) -> Scene:
        flow = (
            "defaultRequestTTL: 1s, priorityBands: [{priority: 0, maxRequests: 2},"
            " {priority: 1, maxBytes: 1k}]"
        )
        made = scene(concurrency(1, flow), pool_of(pool), {"high": 1})
        made.send("first", 5.0)
        await asyncio.sleep(0)
        for name in ("a", "b", "c"):
            made.send(name)
        for name in ("x", "y"):
            made.send(name, objective="high", num_body_bytes=600)
        await made.finish()
        return made

    full, empty = run(lambda: main(1)), run(lambda: main(0))
    seconds, refused = refusal(full, "c")
    assert (seconds, refused.status, refused.reason) == (0.0, 429, Drop.SATURATED)
    assert refusal(full, "y")[1].status == 429
    assert full.outcomes() == {"Dispatched": 1, "RejectedCapacity": 2, "EvictedTTL": 3}
    assert refusal(empty, "y")[1].status == 503
    assert empty.outcomes() == {"RejectedNoEndpoints": 3, "EvictedNoEndpoints": 3}


@virtually
async def test_what_is_full_for_all_makes_room_for_the_higher():
    """The newest of the lowest leave; nobody leaves for an equal, and nobody if it is not enough."""
    flow = "maxRequests: 3, maxBytes: 100, defaultRequestTTL: 1s"
    made = scene(concurrency(1, flow), priorities={"high": 1, "low": -1})
    made.send("first", 5.0)
    await asyncio.sleep(0)
    for name in ("low1", "low2"):
        made.send(name, objective="low", num_body_bytes=10)
    made.send("mid", num_body_bytes=10)
    await asyncio.sleep(0)
    made.send("more", num_body_bytes=10)
    made.send("large", num_body_bytes=101, objective="high")
    made.send("equal", objective="low")
    await made.finish()
    _, refused = refusal(made, "low2")
    assert (refused.status, refused.reason) == (429, Drop.SATURATED)
    assert "another request displaced this one" in refused.message
    assert [refusal(made, name)[0] for name in ("low2", "large", "equal")] == [0.0] * 3
    assert made.outcomes() == {
        "Dispatched": 1, "EvictedOther": 1, "RejectedCapacity": 2, "EvictedTTL": 3,
    }  # fmt: skip


def test_a_full_band_makes_room_for_flows_that_have_less_in_it():
    """The newest of the longest queue leaves; among equals nobody does, nor without fairness."""

    async def main(policy: str) -> Scene:
        band = f"defaultPriorityBand: {{maxRequests: 4, fairnessPolicyRef: {policy}}}"
        made = scene(concurrency(1, f"{band}, defaultRequestTTL: 1s"))
        made.send("first", 5.0)
        await asyncio.sleep(0)
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "b3", "a5"):
            made.send(name, flow=name[0])
            await asyncio.sleep(0)
        await made.finish()
        return made

    fair = run(lambda: main("round-robin-fairness-policy"))
    assert [each.name for each in fair.results if each.seconds == 0.0] == ["a4", "a3", "b3", "a5"]
    assert fair.outcomes() == {
        "Dispatched": 1, "EvictedOther": 2, "RejectedCapacity": 2, "EvictedTTL": 4,
    }  # fmt: skip
    strict = run(lambda: main("global-strict-fairness-policy"))
    assert strict.outcomes() == {"Dispatched": 1, "RejectedCapacity": 4, "EvictedTTL": 4}


@virtually
async def test_whoever_leaves_waits_no_longer():
    """Neither its place nor its bytes stay; and a client that leaves as it is sent gives it back."""
    made = scene(concurrency(1, "priorityBands: [{priority: 0, maxRequests: 1}]"))
    made.send("a", 5.0)
    await asyncio.sleep(0)
    made.send("b").cancel()
    leaving = made.send("c")
    await asyncio.sleep(1)
    leaving.cancel()
    await asyncio.sleep(0)
    late = made.send("d")
    await asyncio.sleep(1)
    ticket = made.decisions["a"].ticket
    assert ticket is not None
    made.made.director.on_end(ticket, Ending.NATURAL)  # d is sent in the loop's next turn,
    asyncio.get_running_loop().call_soon(late.cancel)  # and its client leaves in the same one
    await asyncio.wait([late])
    await asyncio.wait(made.tasks)
    (endpoint,) = made.made.pool
    inflight = made.made.assembly.plugins["inflight-load-producer"]
    assert inflight.num_requests(endpoint) == 0
    assert made.outcomes() == {"Dispatched": 2, "EvictedContextCancelled": 1}
    assert made.made.director.num_open == 0


@virtually
async def test_a_picker_that_closes_lets_nobody_wait():
    """503 at once, for those who wait and those who come."""
    made = scene(concurrency(1))
    made.send("a", 5.0)
    made.send("b")
    await asyncio.sleep(1)
    made.made.director.close()
    made.send("c")
    await made.finish()
    refusals = [refusal(made, name) for name in "bc"]
    assert [(seconds, each.status, each.reason) for seconds, each in refusals] == [
        (1.0, 503, Drop.SHUTTING_DOWN), (0.0, 503, Drop.SHUTTING_DOWN),
    ]  # fmt: skip
    assert made.outcomes() == {"Dispatched": 1, "EvictedOther": 1, "RejectedOther": 1}


@virtually
async def test_retry_after_is_how_long_the_queue_takes():
    """As fast as it went of late."""
    made = scene(concurrency(1, "priorityBands: [{priority: 0, maxRequests: 20}]"))
    for number in range(20):
        made.send(f"first{number}", 0.5)
    await made.finish()
    for number in range(22):
        made.send(f"then{number}", 0.5)
    await made.finish()
    _, refused = refusal(made, "then21")
    assert 5 <= refused.retry_after_s <= 20  # twenty of them, at two a second: about ten


@virtually
async def test_a_young_rate_covers_the_time_that_has_passed():
    """Ten of a queue were dispatched in the first second, and thirty wait: three seconds, and not half a minute."""
    made = scene(concurrency(1, "priorityBands: [{priority: 0, maxRequests: 40}]"))
    for number in range(41):
        made.send(f"first{number}", 0.1)
    await asyncio.sleep(1.05)
    for number in range(11):
        made.send(f"then{number}", 0.1)
    await made.finish()
    _, refused = refusal(made, "then10")
    assert 3 <= refused.retry_after_s <= 5


@virtually
async def test_requests_that_did_not_wait_say_nothing_of_the_queue():
    """Four found room at once, each for ten seconds: a queue of two does not end within a second of that."""
    made = scene(concurrency(4, "priorityBands: [{priority: 0, maxRequests: 2}]"))
    for number in range(4):
        made.send(f"first{number}", 10.0)
    for number in range(2):
        made.send(f"waits{number}", 1.0)
    await asyncio.sleep(6.0)
    made.send("late", 1.0)
    await made.finish()
    assert refusal(made, "late")[1].retry_after_s == 6  # as long as the others have waited


@virtually
async def test_the_gauges_of_a_queue_are_0_while_it_lives():
    """A scaler reads a series that is missing as no number; after five minutes without requests the queue is gone."""
    made = scene(concurrency(1))
    made.send("a", 1.0)
    made.send("b", 1.0)
    await asyncio.sleep(0.5)
    name = "llm_d_epp_flow_control_queue_size"
    assert [value for _, value in made.rows(name)] == [1.0]
    await made.finish()
    assert [value for _, value in made.rows(name)] == [0.0]
    await asyncio.sleep(IDLE_FLOW_S + 2.0)
    assert made.rows(name) == []


# -- what the reference is known for ------------------------------------------------------------

UTILIZATION = (
    "featureGates: [flowControl]\nplugins:\n- {type: queue-scorer}\n"
    "- {type: utilization-detector, parameters: {queueDepthThreshold: 5}}\n"
)


@virtually
async def test_between_two_reports_no_more_is_sent_than_there_is_room_for():
    """What was sent counts as waiting until the endpoint reports again, or answers."""
    pool = pool_of(2)
    made = scene(UTILIZATION, pool)
    report(pool)
    for number in range(100):
        made.send(str(number), 100.0)
    counts = []
    await asyncio.sleep(0.5)
    counts.append(len(made.placed))
    report(pool, num_waiting=3)
    await asyncio.sleep(0.5)
    counts.append(len(made.placed))
    report(pool)
    await asyncio.sleep(0.5)
    counts.append(len(made.placed))
    made.made.director.close()
    assert counts == [10, 14, 24]


@virtually
async def test_a_pool_that_reports_nothing_is_not_one_that_is_full():
    """Requests are sent on, also those that waited when its reports ended."""
    pool = pool_of(2)
    made = scene(UTILIZATION, pool)
    report(pool, num_waiting=50)
    made.send("waits")
    await asyncio.sleep(2)
    assert made.placed == []
    await asyncio.sleep(3)  # load is stale after three seconds
    made.send("comes")
    await made.finish()
    assert made.outcomes() == {"Dispatched": 2}


@virtually
async def test_one_full_endpoint_that_reports_nothing_more_does_not_count():
    """Those that report decide."""
    pool = pool_of(2)
    _, second = pool
    made = scene(UTILIZATION, pool)
    report(pool, num_waiting=50)
    await asyncio.sleep(10)
    second.observe(Load(), polled_at=now())
    made.send("a")
    await made.finish()
    assert made.of("a")[0].seconds == pytest.approx(1.0)


@virtually
async def test_the_fuller_stage_decides():
    """Prefill and decode are rated apart, and the series say how."""
    role = "llm-d.ai/role"
    pool = make_pool(spec(1, **{role: "prefill"}), spec(2, **{role: "decode"}))
    made = scene(UTILIZATION, pool)
    prefill, _ = pool
    report(pool)
    prefill.observe(Load(num_waiting=10), polled_at=now())
    made.send("a")
    await asyncio.sleep(1)
    assert made.placed == []
    stages = [
        sample(made.made, "llm_d_epp_flow_control_pool_saturation",
               inference_pool="default", stage=stage)
        for stage in ("prefill", "decode", "effective")
    ]  # fmt: skip
    report(pool)
    await made.finish()
    assert stages == [2.0, 0.0, 2.0]


@virtually
async def test_loads_are_polled_for_those_who_wait():
    """The pool says so to whoever polls, for as long as somebody waits."""
    pool = pool_of(1)
    made = scene(UTILIZATION, pool)
    report(pool, num_waiting=5)
    wanted = [pool.loads_wanted]
    made.send("a")
    await asyncio.sleep(0.5)
    wanted.append(pool.loads_wanted)
    report(pool)
    await made.finish()
    wanted.append(pool.loads_wanted)
    assert wanted == [False, True, False]


@pytest.mark.parametrize("leaves", ["by its TTL", "by itself"])
@virtually
async def test_loads_are_not_polled_for_those_who_left(leaves: str):
    """However the last wait ended; nor is anything looked for again."""
    pool = pool_of(1)
    made = scene(f"{UTILIZATION}flowControl: {{defaultRequestTTL: 3s}}\n", pool)
    report(pool, num_waiting=5)
    waiting = made.send("a")
    await asyncio.sleep(2)
    report(pool, num_waiting=5)
    if leaves == "by itself":
        waiting.cancel()
    await asyncio.wait([waiting])
    flow = made.made.director._flow
    timers = [each for each in (flow._timer, flow._look_again) if each is not None]
    assert (pool.loads_wanted, len(timers)) == (False, 0)


@virtually
async def test_a_deadline_is_watched_once():
    """Also of the request that is the first to find the pool empty."""
    made = scene(concurrency(1))
    put(made)
    made.send("a")
    await asyncio.sleep(0.1)
    flow = made.made.director._flow
    num_watched = len(flow._deadlines)
    made.made.director.close()
    await made.finish()
    assert num_watched == 1


@virtually
async def test_a_long_wait_does_not_make_a_request_an_old_one():
    """Its time in flight begins when it is sent on, and only then it may be one whose end was lost."""
    made = scene(concurrency(1, "defaultRequestTTL: 0s"), ticket_ttl_s=3600.0)
    made.send("a", 3500.0)
    await asyncio.sleep(0)
    made.send("b", 3500.0)
    await asyncio.sleep(3700)
    made.made.director.sweep()
    num_open = made.made.director.num_open
    await made.finish()
    assert num_open == 1
