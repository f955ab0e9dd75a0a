"""`vtc-fairness-policy` and `program-score-ordering-policy`: who goes next by what flows have had, in virtual time."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.epp.flow.virtual import Scene, concurrency, scene, virtually
from tests.epp.pools import sample
from weft.epp.flow.control import FlowControl

VTC = "defaultPriorityBand: {fairnessPolicyRef: vtc-fairness-policy}"
SCORE = "defaultPriorityBand: {orderingPolicyRef: program-score-ordering-policy}"
PLUGINS = (
    "- {type: vtc-fairness-policy}\n- {type: program-score-ordering-policy, parameters: {%s}}\n"
)


def shares(flow: str, score: str = "weightTokens: 0") -> str:
    """One request at a time."""
    text, plugins = concurrency(1, flow), PLUGINS % score
    return text.replace("plugins:\n", f"plugins:\n{plugins}", 1)


async def behind(made: Scene, *sent: tuple[str, dict[str, Any]]) -> list[str]:
    """In which order they go that come while one is served, each of its flow by its first letter."""
    before = len(made.placed)
    made.send("first", 5.0, flow="nobody")
    await asyncio.sleep(1)
    for name, how in sent:
        made.send(name, 0.1, flow=name[0], **how)
        await asyncio.sleep(0.01)
    await made.finish()
    return made.placed[before + 1 :]


# -- by tokens ----------------------------------------------------------------------------------


@virtually
async def test_turns_are_by_tokens():
    """A request of a thousand tokens and three times 128 costs as much as some three and a half of ten."""
    made = scene(shares(VTC))
    sent = [(f"a{i}", {"num_tokens": 1000}) for i in range(40)]
    sent += [(f"b{i}", {"num_tokens": 10}) for i in range(40)]
    assert Counter(name[0] for name in (await behind(made, *sent))[:45]) == pytest.approx(
        {"a": 10, "b": 35}, abs=1
    )


@virtually
async def test_nobody_saves_up_turns():
    """Who comes late, or comes back, begins where the others are; who was alone has no debt."""
    made = scene(shares(VTC))
    for number in range(50):
        await made.send(f"a{number}", 0.1, flow="a")
    mixed = [(f"{flow}{i}", {}) for i in range(4) for flow in "ab"]
    order = [name[0] for name in await behind(made, *mixed)]
    assert sorted(order[:4]) == ["a", "a", "b", "b"]
    assert sorted(order[4:]) == ["a", "a", "b", "b"]


@virtually
async def test_bands_have_counters_of_their_own():
    """What a flow had of one priority it does not owe in another; names that nobody uses are not kept for ever."""
    text = shares(
        f"{VTC}, priorityBands: [{{priority: 5, fairnessPolicyRef: vtc-fairness-policy}}]"
    )
    made = scene(text, priorities={"high": 5})
    high = [(f"a{i}", {"objective": "high"}) for i in range(6)]
    low = [(f"{flow}{i}", {}) for i in range(6, 9) for flow in "ab"]
    order = await behind(made, *high, *low)
    for number in range(10_100):
        await made.send(f"n{number}", 0.0, flow=str(number))
    policy = made.made.assembly.plugins["vtc-fairness-policy"]
    order, num_names = order[6:], len(policy._bands[0].counters)
    assert {frozenset(name[0] for name in order[i : i + 2]) for i in (0, 2, 4)} == {frozenset("ab")}
    assert num_names <= 10_000


# -- by score -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "pause_s", "order"),
    [
        ("weightTokens: 0", 0, ["c0", "b0", "a0"]),  # by turns alone
        ("weightTurns: 0, weightTokens: 1", 0, ["c0", "b0", "a0"]),  # each had 30 tokens a turn
        ("weightTurns: 0, weightTokens: 0", 0, ["a0", "b0", "c0"]),  # who came first
        ("halfLifeSeconds: 1", 3000, ["c0", "b0", "a0"]),  # however small what is left
        ("evictionTtlSeconds: 100, evictionSweepSeconds: 1", 3000, ["a0", "b0", "c0"]),
    ],
)  # fmt: skip
@virtually
async def test_the_flow_that_had_least_goes_first(score: str, pause_s: float, order: list[str]):
    """In one queue, whatever there is of each; what is long ago counts less, and then not at all."""
    made = scene(shares(SCORE, score))
    for name in ("a", "a", "a", "b"):
        await made.send(name, 0.0, flow=name)
    await asyncio.sleep(pause_s)
    assert await behind(made, *((f"{flow}0", {}) for flow in "abc")) == order


@virtually
async def test_what_a_flow_gets_counts_at_once():
    """Those of it that wait already are behind others then; who came first goes first of equals."""
    sent = [(f"a{i}", {}) for i in range(3)] + [("b0", {}), ("c0", {}), ("b1", {})]
    assert await behind(scene(shares(SCORE)), *sent) == ["a0", "b0", "c0", "a1", "b1", "a2"]


@virtually
async def test_turns_and_tokens_can_be_seen():
    """As they age: half of them after a minute."""
    made = scene(shares(SCORE, "halfLifeSeconds: 60"))
    await made.send("a", 0.0, flow="a")
    await asyncio.sleep(60)
    name = "llm_d_epp_program_score_decayed_"
    assert [
        sample(made.made, name + each, program_id="a") for each in ("turns", "tokens")
    ] == pytest.approx([0.5, 15.0], rel=0.01)


@virtually
async def test_flows_that_come_and_leave_leave_nothing():
    """Thousands of names, while the first of the queue does not move."""
    made = scene(shares(SCORE))
    made.send("first", 100.0, flow="x")
    made.send("head", flow="y")
    await asyncio.sleep(1)
    for number in range(2000):
        task = made.send(str(number), flow=str(number))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    flow = made.made.director._flow
    assert isinstance(flow, FlowControl)
    (queue,) = next(iter(flow._bands))._queues.values()
    made.made.director.close()
    assert max(len(queue._costs), len(queue._flows)) < 100
