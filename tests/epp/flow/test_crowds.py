"""Thousands that wait, each in a flow of its own: clients name the flows, and none of it may cost more for that."""

import asyncio
import time

import pytest

from tests.epp.flow.virtual import Scene, concurrency, run, scene, virtually
from weft.epp.decision.tickets import Ending

MANY = 1500
FAIRNESS = "fairnessPolicyRef: round-robin-fairness-policy"


async def crowd(num_flows: int, limit: int = 2 * MANY) -> Scene:
    """So many requests that wait, in so many flows."""
    made = scene(concurrency(1, f"defaultPriorityBand: {{maxRequests: {limit}, {FAIRNESS}}}"))
    made.send("first", 1000.0)
    await asyncio.sleep(1)
    for number in range(MANY):
        made.send(str(number), flow=str(number % num_flows))
    await asyncio.sleep(1)
    return made


async def end(made: Scene) -> None:
    made.made.director.close()
    made.tasks[0].cancel()
    await asyncio.wait(made.tasks)


@pytest.mark.parametrize("limit", [2 * MANY, MANY])
def test_a_request_more_costs_the_same_in_many_flows(limit: int):
    """Whether there is room for it, or somebody of a long flow would have to leave."""

    async def main(num_flows: int) -> float:
        made = await crowd(num_flows, limit)
        began = time.process_time()
        for number in range(300):
            made.send(f"late{number}", flow=str(number % num_flows))
        await asyncio.sleep(1)
        spent = time.process_time() - began
        await end(made)
        return spent

    few = min(run(lambda: main(10)) for _ in range(2))
    many = min(run(lambda: main(MANY)) for _ in range(2))
    assert many < 5 * few


@virtually
async def test_who_makes_room_is_the_newest_of_the_longest_flows():
    """As many as it takes, from whichever flow is the longest by then."""
    made = scene(concurrency(1, f"defaultPriorityBand: {{maxBytes: 100, {FAIRNESS}}}"))
    made.send("first", 10.0)
    await asyncio.sleep(1)
    for name in ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "c0"):
        made.send(name, flow=name[0], num_body_bytes=10)
        await asyncio.sleep(0)
    made.send("d0", flow="d", num_body_bytes=60)  # 20 are free
    await asyncio.sleep(0.1)
    left = [each.name for each in made.results]
    await end(made)
    assert sorted(left) == ["a1", "a2", "a3", "b2"]


@virtually
async def test_who_can_never_fit_makes_nobody_leave():
    """It is larger than all that may wait."""
    made = scene(concurrency(1, "maxBytes: 100"))
    made.send("first", 10.0)
    await asyncio.sleep(1)
    for name in ("a0", "a1"):
        made.send(name, flow="a", num_body_bytes=10)
    made.send("b0", flow="b", num_body_bytes=101)
    await asyncio.sleep(0.1)
    left = [each.name for each in made.results]
    await end(made)
    assert left == ["b0"]


@virtually
async def test_a_flow_keeps_its_turn_when_its_first_has_left():
    """The client disconnects in the very moment in which there is room: another of the flow goes."""
    made = scene(concurrency(1, f"defaultPriorityBand: {{{FAIRNESS}}}"))
    made.send("first", 10.0)
    await asyncio.sleep(1)
    waiting = [made.send(name, flow=name[0]) for name in ("a0", "a1", "b0")]
    await asyncio.sleep(1)
    ticket = made.decisions["first"].ticket
    assert ticket is not None
    made.made.director.on_end(ticket, Ending.NATURAL)  # looked at in the loop's next turn
    waiting[0].cancel()
    await asyncio.wait(made.tasks)
    assert made.placed[1:] == ["a1", "b0"]
