"""`program-aware-fairness` by turns of a session, and what flows that clients name may cost."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.epp.flow.virtual import HEAD, Scene, concurrency, now, scene, virtually
from tests.epp.pools import pool_of, sample
from weft.epp.flow.item import Item

WAIT = "llm_d_epp_program_aware_avg_wait_time_milliseconds"
JAIN = "llm_d_epp_program_aware_jains_fairness_index"


def turns(**parameters: Any) -> str:
    """Deepest session first."""
    given = "".join(f", {key}: {value}" for key, value in parameters.items())
    text = concurrency(1, "defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}")
    plain = "{type: program-aware-fairness}"
    assert plain in text
    return text.replace(
        plain, f"{{type: program-aware-fairness, parameters: {{strategy: turn-priority{given}}}}}"
    )


async def sessions(made: Scene, *waiting: str, depths: dict[str, int], pause_s: float) -> list[str]:
    """Sessions that have had so many turns, then a pause, then one request of each that waits a second apart."""
    for flow, depth in depths.items():
        for number in range(depth):
            await made.send(f"{flow}{number}", 0.0, flow=flow)
    await asyncio.sleep(pause_s)
    before = len(made.placed)
    made.send("first", 10.0, flow="other")
    for flow in waiting:
        await asyncio.sleep(1)
        made.send(f"{flow}-waits", 0.0, flow=flow)
    await made.finish()
    return [name.removesuffix("-waits") for name in made.placed[before + 1 :]]


@pytest.mark.parametrize(
    ("parameters", "pause_s", "order"),
    [
        ({}, 1, ["deep", "new", "short"]),  # new has waited two seconds longer, which is one turn
        ({"turnPriorityTimeWeight": 0}, 1, ["deep", "short", "new"]),
        ({"turnPriorityTimeWeight": 9}, 1, ["new", "deep", "short"]),
        ({}, 300, ["new", "deep", "short"]),  # all sessions begin anew
        ({"turnPriorityInactivitySeconds": 0}, 300, ["deep", "new", "short"]),
    ],
)
@virtually
async def test_the_deepest_session_goes_first(
    parameters: dict[str, float], pause_s: float, order: list[str]
):
    """A second of waiting counts as half a turn; who was away for long begins anew."""
    made = scene(turns(**parameters))
    depths = {"deep": 5, "short": 1}
    assert await sessions(made, "new", "deep", "short", depths=depths, pause_s=pause_s) == order


@virtually
async def test_those_that_name_no_session_are_not_one():
    """However many they are."""
    made = scene(turns(turnPriorityTimeWeight=0))
    depths = {"": 9, "short": 1}
    assert await sessions(made, "", "short", depths=depths, pause_s=1) == ["short", ""]


@virtually
async def test_what_is_in_flight_does_not_begin_anew():
    """A turn that takes longer than a session may pause."""
    made = scene(turns(turnPriorityTimeWeight=0).replace("maxConcurrency: 1", "maxConcurrency: 2"))
    await made.send("deep0", 0.0, flow="deep")
    made.send("deep1", 500.0, flow="deep")
    await asyncio.sleep(300)
    made.send("first", 10.0, flow="other")
    for flow in ("new", "deep"):
        await asyncio.sleep(1)
        made.send(f"{flow}-waits", 0.0, flow=flow)
    await made.finish()
    assert made.placed[3:] == ["deep-waits", "new-waits"]


@virtually
async def test_bands_may_have_strategies_of_their_own():
    """Two of one type write the same series, each its own flows."""
    plugins = (
        "plugins:\n- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n"
        "- {type: active-request-scorer}\n- {name: tokens, type: program-aware-fairness}\n"
        "- {name: turns, type: program-aware-fairness, parameters: {strategy: turn-priority}}\n"
        "flowControl: {saturationDetector: {pluginRef: concurrency-detector},"
        " defaultPriorityBand: {fairnessPolicyRef: tokens},"
        " priorityBands: [{priority: 5, fairnessPolicyRef: turns}]}\n"
    )
    made = scene(HEAD + plugins, pool_of(1), {"high": 5})
    for name, objective in (("a", ""), ("b", "high"), ("c", "")):
        made.send(name, 1.0, flow=name, objective=objective)
    await made.finish()
    assert [sample(made.made, WAIT, program_id=name) for name in "abc"] == [0.0, 1000.0, 2000.0]


@virtually
async def test_the_index_of_fairness_is_that_of_waits():
    """1 where all wait as long; of two of which one never waits, a half."""
    made = scene(turns())
    made.send("a", 1.0, flow="a")
    made.send("b", 1.0, flow="b")
    await made.finish()
    assert sample(made.made, JAIN) == pytest.approx(0.5)


@virtually
async def test_long_names_of_flows_are_not_remembered():
    """Ten thousand of them would be half a gigabyte."""
    made = scene(turns())
    await made.send("a", 0.0, flow="x" * 60_000)
    assert max(map(len, made.made.assembly.plugins["program-aware-fairness"]._programs._of)) < 1000


@virtually
async def test_decisions_that_take_long_leave_turns_to_others():
    """Not eight of them in a row, whatever each of them takes."""
    made = scene(concurrency(100))
    flow = made.made.director._flow
    assert flow is not None
    seen: list[str] = []

    def place() -> None:
        time.sleep(0.02)
        seen.append("placed")

    def item() -> Item:
        return Item(
            priority=0, fairness_id="a", num_bytes=0, labels=("", "", "a", "0"),
            arrived=now(), place=place, abandon=lambda _: None,
        )  # fmt: skip

    made.made.pool.replace("test", [])
    waiting = [asyncio.create_task(flow.admit(item())) for _ in range(4)]
    await asyncio.sleep(1)

    def turn() -> None:
        seen.append("turn")
        if len(seen) < 8:
            asyncio.get_running_loop().call_soon(turn)

    one = pool_of(1)
    made.made.pool.replace("test", [(each.spec, each.spec.address) for each in one])
    asyncio.get_running_loop().call_soon(turn)
    await asyncio.wait(waiting)
    assert ("placed", "placed") not in pairwise(seen)
