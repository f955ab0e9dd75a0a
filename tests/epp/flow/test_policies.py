"""Who is next: bands, fairness, ordering, ceilings, and who is ended in flight for others."""

import asyncio
from typing import Any

import pytest

from tests.epp.flow.virtual import (
    CONCURRENCY,
    HEAD,
    Scene,
    concurrency,
    report,
    run,
    scene,
    virtually,
)
from tests.epp.pools import around, parameters, pool_of, sample
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.flow.control import FlowControl
from weft.epp.plugins.flow.usage_limits import (
    Holdback,
    HoldbackParameters,
    SoftReflectiveCeiling,
)

PRIORITIES = {"high": 1, "low": -1, "lowest": -2}


def band(**policies: str) -> str:
    """Every band has these policies."""
    inner = ", ".join(f"{key}: {value}" for key, value in policies.items())
    return f"defaultPriorityBand: {{{inner}}}"


def order_of(text: str, *sent: tuple[str, dict[str, Any]]) -> list[str]:
    """Who goes in which order, once the request that holds the only place ends."""

    async def main() -> list[str]:
        return await behind(scene(text, priorities=PRIORITIES), *sent)

    return run(main)


async def behind(made: Scene, *sent: tuple[str, dict[str, Any]]) -> list[str]:
    made.send("first", 5.0)
    await asyncio.sleep(1)
    for name, how in sent:
        made.send(name, **how)
        await asyncio.sleep(0.1)
    await made.finish()
    return made.placed[1:]


def test_higher_priorities_go_first():
    """Whoever came when."""
    sent = [(name, {"objective": name}) for name in ("low", "mid", "high", "lowest")]
    order = order_of(concurrency(1), *sent)
    assert order == ["high", "mid", "low", "lowest"]


def test_flows_take_turns():
    """One that has sent ten goes no more often than one that has sent two."""
    text = concurrency(1, band(fairnessPolicyRef="round-robin-fairness-policy"))
    sent = [(f"a{i}", {"flow": "a"}) for i in range(4)]
    sent += [("b0", {"flow": "b"}), ("c0", {"flow": "c"}), ("b1", {"flow": "b"})]
    order = order_of(text, *sent)
    assert order == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_without_fairness_who_came_first_goes_first():
    """Whatever their flows."""
    sent = [(f"{flow}{i}", {"flow": flow}) for i, flow in enumerate("aabac")]
    assert order_of(concurrency(1), *sent) == ["a0", "a1", "b2", "a3", "c4"]


@virtually
async def test_the_flow_that_got_least_goes_first():
    """By tokens, which are forgotten with time; a flow that waits long counts as well."""
    text = concurrency(1, band(fairnessPolicyRef="program-aware-fairness"))
    made = scene(text)
    for i in range(3):
        made.send(f"a{i}", flow="a")
    await made.finish()
    await behind(made, ("a3", {"flow": "a"}), ("b0", {"flow": "b"}), ("b1", {"flow": "b"}))
    assert made.placed[4:] == ["b0", "b1", "a3"]
    attained = sample(made.made, "llm_d_epp_program_aware_attained_service_tokens", program_id="b")
    assert attained == pytest.approx(100, rel=0.1)  # two of 10 tokens in and 20 out
    fairness = sample(made.made, "llm_d_epp_program_aware_jains_fairness_index")
    assert 0.5 < fairness < 1
    wait = sample(made.made, "llm_d_epp_program_aware_avg_wait_time_milliseconds", program_id="b")
    assert wait == pytest.approx((3900 + 4800) / 2)


@pytest.mark.parametrize(
    ("policy", "header", "order"),
    [
        ("edf-ordering-policy", "x-llm-d-request-ttl-ms", ["c", "b", "a", "d"]),
        ("slo-deadline-ordering-policy", "x-llm-d-slo-ttft-ms", ["c", "b", "a", "d"]),
        ("slo-deadline-ordering-policy", "x-slo-ttft-ms", ["c", "b", "a", "d"]),
        ("fcfs-ordering-policy", "x-llm-d-request-ttl-ms", ["a", "b", "c", "d"]),
    ],
)
def test_order_within_a_queue(policy: str, header: str, order: list[str]):
    """Deadlines, where the policy goes by them; who says nothing comes last."""
    sent: list[tuple[str, dict[str, Any]]] = [
        (name, {"headers": {header: ms}})
        for name, ms in (("a", "30000"), ("b", "20000"), ("c", "10000"))
    ]
    text = concurrency(1, band(orderingPolicyRef=policy))
    assert order_of(text, *sent, ("d", {})) == order


def test_0_is_no_deadline():
    """As everywhere: not one that has passed."""
    text = concurrency(1, band(orderingPolicyRef="slo-deadline-ordering-policy"))
    sent: list[tuple[str, dict[str, Any]]] = [
        (name, {"headers": {"x-llm-d-slo-ttft-ms": ms}})
        for name, ms in (("a", "0"), ("b", ""), ("c", "9000"))
    ]
    assert order_of(text, *sent) == ["c", "a", "b"]


@virtually
async def test_an_slo_that_is_no_number_does_not_wait():
    """It is refused like any other bad header, whichever policy goes by it."""
    made = scene(concurrency(1))
    await made.send("bad", headers={"x-llm-d-slo-ttft-ms": "soon"})
    (result,) = made.results
    assert str(result.refused).startswith("x-llm-d-slo-ttft-ms: must be milliseconds")


@virtually
async def test_room_is_held_back_from_low_priorities():
    """By rank and by value; a pool half full takes no more of the lowest, and the rest of it others."""
    by_rank = Holdback(parameters(HoldbackParameters, minCeiling=0.4), around())
    by_value = Holdback(
        parameters(HoldbackParameters, minCeiling=0.4, maxCeiling=0.8, domain="value"), around()
    )
    assert by_rank.ceilings([10, 9, 0], 0.0) == pytest.approx([1.0, 0.7, 0.4])
    assert by_value.ceilings([10, 9, 0], 0.0) == pytest.approx([0.8, 0.76, 0.4])
    assert by_rank.ceilings([5], 0.0) == [1.0]
    made = scene(
        concurrency(4, "usageLimitPolicyPluginRef: priority-holdback-policy"),
        priorities={"low": -1},
    )
    for i in range(3):
        made.send(f"low{i}", 5.0, objective="low")
    await asyncio.sleep(1)
    for i in range(3):
        made.send(f"mid{i}", 5.0)
    await asyncio.sleep(1)
    sent = list(made.placed)
    await made.finish()
    assert sent == ["low0", "low1", "mid0", "mid1"]


def test_a_soft_ceiling_sinks_as_the_pool_fills():
    """And whoever it closes out still goes once in so many looks, until the pool is full."""
    policy = SoftReflectiveCeiling(parameters(HoldbackParameters, minCeiling=0), around())
    lowest = [policy.ceilings([1, 0, -1], 0.8)[-1] for _ in range(8)]
    assert lowest == pytest.approx([0.2, 0.2, 0.2, 1.0] * 2)
    assert policy.ceilings([1, 0, -1], 1.5) == pytest.approx([1.0, 0.25, -0.5])
    assert policy.ceilings([0], 0.9)[0] == 1.0


# -- eviction -----------------------------------------------------------------------------------


class Ended:
    """Ends responses of a director when it wants them to, as a server does."""

    def __init__(self, made: Scene, is_prompt: bool = True) -> None:
        self.names: list[str] = []
        self._made = made
        self._is_prompt = is_prompt

    def follow(self, name: str) -> None:
        decision = self._made.decisions[name]
        decision.ticket.revoke = lambda: self._end(name, decision)

    def _end(self, name: str, decision: Decision) -> None:
        self.names.append(name)
        assert decision.ticket is not None
        if self._is_prompt:
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, self._made.made.director.on_end, decision.ticket, Ending.EVICTED)


def evicting(limit: int) -> str:
    return concurrency(limit, "enableEviction: true")


async def filled(made: Scene, is_prompt: bool = True) -> Ended:
    """A pool that is full of sheddable requests and one other."""
    ended = Ended(made, is_prompt)
    for name in ("low0", "mid0", "lowest0", "low1", "lowest1"):
        objective = name[:-1]
        made.send(name, 50.0, objective=objective)
        await asyncio.sleep(0.1)
        ended.follow(name)
    return ended


@virtually
async def test_sheddable_requests_are_ended_for_others():
    """The lowest first and of these the newest; as many as are needed, and none that is not sheddable."""
    made = scene(evicting(5), priorities=PRIORITIES)
    ended = await filled(made)
    made.send("high0", objective="high")
    await asyncio.sleep(0.2)
    names = list(ended.names)
    for i in range(1, 6):
        made.send(f"high{i}", 50.0, objective="high")
    await asyncio.sleep(20)
    assert set(names) <= set(ended.names)
    made.made.director.close()
    names += ended.names[1:]
    assert names == ["lowest1", "lowest0", "low1", "low0"]
    assert made.of("high0")[0].seconds == pytest.approx(1.1)
    issued = sample(
        made.made, "llm_d_epp_flow_control_revocations_issued_total",
        priority="1", inference_pool="default",
    )  # fmt: skip
    confirmed = sample(
        made.made, "llm_d_epp_flow_control_revocations_total",
        outcome="confirmed", inference_pool="default",
    )  # fmt: skip
    assert (issued, confirmed) == (4, 4)


def test_sheddable_requests_are_not_ended_for_their_like():
    """Only for those of a higher priority; and with eviction off for nobody."""

    async def main(text: str, objective: str) -> list[str]:
        made = scene(text, priorities=PRIORITIES)
        ended = await filled(made)
        made.send("waits", objective=objective)
        await asyncio.sleep(5)
        made.made.director.close()
        return ended.names

    assert run(lambda: main(evicting(5), "lowest")) == []
    assert run(lambda: main(evicting(5), "low")) == ["lowest1"]
    assert run(lambda: main(concurrency(5), "high")) == []


@virtually
async def test_nothing_is_ended_twice_for_one_report():
    """The next round waits until the last has ended; one that hangs is given up on."""
    made = scene(evicting(5), priorities=PRIORITIES)
    ended = await filled(made, is_prompt=False)
    made.send("high0", objective="high")
    seen = []
    for seconds in (5, 8):
        await asyncio.sleep(seconds)
        seen.append(list(ended.names))
    made.made.director.close()
    assert seen == [["lowest1"], ["lowest1", "lowest0"]]


# -- bounds -------------------------------------------------------------------------------------


@virtually
async def test_clients_that_come_and_leave_leave_nothing():
    """Neither in a queue whose head does not move nor among the deadlines."""
    made = scene(concurrency(1, band(orderingPolicyRef="slo-deadline-ordering-policy")))
    made.send("first", 100.0)
    made.send("head", headers={"x-llm-d-slo-ttft-ms": "1"})
    await asyncio.sleep(0)
    for i in range(2000):
        task = made.send(str(i), flow=str(i))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    flow = made.made.director._flow
    assert isinstance(flow, FlowControl)
    assert flow.num_waiting == 1
    (queue,) = next(iter(flow._bands))._queues.values()
    sizes = len(queue._heap), len(flow._deadlines._heap)
    made.made.director.close()
    assert max(sizes) < 100


@virtually
async def test_bands_that_nobody_uses_are_forgotten():
    """Those of objectives that are no more; a configured one stays."""
    text = concurrency(5, "priorityBands: [{priority: 7}]")
    made = scene(text, priorities=PRIORITIES)
    await made.send("a", objective="high")
    flow = made.made.director._flow
    seen = [[each.priority for each in flow._bands]]
    await asyncio.sleep(700)
    made.made.director.sweep()
    seen.append([each.priority for each in flow._bands])
    assert seen == [[7, 1, 0], [7, 0]]


@virtually
async def test_a_band_that_is_forgotten_has_no_series():
    """Nobody would bring them up to date any more."""
    name = "llm_d_epp_flow_control_capacity_utilization_requests"
    made = scene(concurrency(5), priorities=PRIORITIES)
    await made.send("a", objective="high")
    seen = [sample(made.made, name, priority="1", inference_pool="default")]
    await asyncio.sleep(700)
    made.made.director.sweep()
    assert [*seen, sample(made.made, name, priority="1", inference_pool="default")] == [0.0, None]


@virtually
async def test_policies_that_nothing_names_are_not_built():
    """They would follow responses for nothing."""
    text = CONCURRENCY.replace("- {type: active-request-scorer}\n", "") % 1
    text = text.replace("concurrency-detector, parameters: {maxConcurrency: 1}", "queue-scorer")
    follows = []
    for flow in ("", "flowControl: {enableEviction: true}\n"):
        pool = pool_of(1)
        made = scene(HEAD + text + flow, pool)
        report(pool)
        await made.send("a")
        ticket = made.decisions["a"].ticket
        follows.append(ticket.is_followed)
    assert follows == [False, True]
