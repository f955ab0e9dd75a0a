"""What the metrics port shows of decisions among thousands of endpoints."""

import json

import pytest

from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import pool_of, request
from weft.epp.decision.cycle import Cycle, ProfileRun
from weft.epp.decision.explain import DecisionRing
from weft.epp.request.values import Refused
from weft.epp.server.pages import pages

NUM_SCORERS = 40


def decisions_of(num_endpoints, names):
    """The page, after a decision for each name."""
    endpoints, scores = list(pool_of(num_endpoints)), [0.5] * num_endpoints
    run = ProfileRun(
        profile="p",
        candidates=endpoints,
        scored=endpoints,
        scores=[(f"s{number}", 1.0, scores) for number in range(NUM_SCORERS)],
        totals=scores,
    )
    ring = DecisionRing(9)
    for name in names:
        wanted = request(1, request_id=name)
        cycle = Cycle(request=wanted, model="m", candidates=endpoints, now=0.0, runs=[run])
        ring.keep(cycle, Refused(503, "busy"), duration_s=0.0, stale=())
    return pages(None, None, ring, None)["/debug/decisions"]


@pytest.mark.parametrize("query", [{}, {"request_id": "b"}], ids=["all", "one"])
async def test_decisions_among_thousands_do_not_hold_up_others(query):
    """Neither all of them nor one."""
    show = decisions_of(2000, "ab")
    shown = json.loads((await check_pauses(lambda: show(query))).body)
    one = shown if query else shown[0]
    assert one["request_id"] == "b"
    assert len(one["profiles"][0]["scorers"][-1]["scores"]) == 2000


async def test_decisions_among_thousands_are_fewer():
    """As many of the newest as a bounded answer has room for; each by its id."""
    show = decisions_of(2000, "abcd")
    assert [one["request_id"] for one in json.loads((await show({})).body)] == ["d", "c"]
    assert json.loads((await show({"request_id": "a"})).body)["request_id"] == "a"
    assert (await show({"request_id": "x"})).status == 404


async def test_decisions_among_few_are_all_there():
    """Newest first, and no more than were asked for."""
    show = decisions_of(2, "abc")
    names = [
        [one["request_id"] for one in json.loads((await show(query)).body)]
        for query in ({}, {"limit": "2"})
    ]
    assert names == [["c", "b", "a"], ["c", "b"]]
