"""What the metrics port shows of decisions among thousands of endpoints."""

import asyncio
import contextlib
import json
import socket

import pytest

from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import bench, pool_of, request, until
from weft.core.callers import HostRule
from weft.epp.decision.cycle import Cycle, ProfileRun
from weft.epp.decision.explain import DecisionRing
from weft.epp.request.values import Refused
from weft.epp.server import admin
from weft.epp.server.explain_page import summary
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


async def test_decisions_behind_a_moment_are_had_alone():
    """So that one who looks again and again gets each once; what is no time is refused."""
    show = decisions_of(2, "abc")
    first, *later = json.loads((await show({})).body)[::-1]
    rest = json.loads((await show({"after": repr(first["time"])})).body)
    assert [one["request_id"] for one in rest] == [one["request_id"] for one in later[::-1]]
    assert json.loads((await show({"after": repr(later[-1]["time"])})).body) == []
    assert (await show({"after": "yesterday"})).status == 400


async def test_decisions_among_few_are_all_there():
    """Newest first, and no more than were asked for."""
    show = decisions_of(2, "abc")
    names = [
        [one["request_id"] for one in json.loads((await show(query)).body)]
        for query in ({}, {"limit": "2"})
    ]
    assert names == [["c", "b", "a"], ["c", "b"]]


def test_what_a_header_says_is_what_the_record_says():
    """Of who was picked and who came second, and of nobody else: it has room for a few of hundreds."""
    prefix = "plugins:\n- type: prefix-cache-scorer\n- type: queue-scorer\n"
    made = bench(prefix, pool_of(300))
    for _ in range(300):  # until each of them holds the prompt
        made.host(*range(64))
    made.pick(request(*range(64), request_id="r"))
    entry, record = made.director.decisions.find("r"), made.director.decisions.get("r")
    assert entry is not None
    said, (profile,) = summary(entry), record.profiles
    shown = [profile.picked[0], profile.runner_up]
    assert said["picked"] == record.endpoints
    assert said["profiles"]["default"]["totals"] == {
        name: round(profile.totals[name], 4) for name in shown
    }
    assert said["profiles"]["default"]["scores"]["queue-scorer"] == {
        name: round(profile.scorers[1].scores[name].weighted, 4) for name in shown
    }
    (cached,) = said["cached_tokens"].values()
    assert set(cached) <= set(shown)
    assert len(json.dumps(said)) < 2048


async def test_a_limit_of_any_length_is_one():
    """More digits than Python reads as a number are still a large one."""
    show = decisions_of(2, "abc")
    assert len(json.loads((await show({"limit": "9" * 5000})).body)) == 3
    assert len(json.loads((await show({"limit": "2"})).body)) == 2


async def test_who_reads_no_page_does_not_have_it_held(monkeypatch):
    """It may be megabytes, and nothing would end the connection."""
    monkeypatch.setattr(admin, "_TIMEOUT_S", 0.05)
    server = admin.AdminServer(
        {"/page": lambda _: admin.Page(bytes(32 * 2**20))}, HostRule("127.0.0.1")
    )
    port = await server.start("127.0.0.1", 0)
    before = asyncio.all_tasks()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        await until(lambda: server._num_answered)
        await until(lambda: asyncio.all_tasks() <= before)
    await server.stop()


LARGE_AND_PUBLIC = {
    "/page": lambda _: admin.Page(bytes(32 * 2**20)),
    "/healthz": lambda _: admin.Page(b"ok"),
}


async def status_of(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head = await reader.readline()
    writer.close()
    return int(head.split()[1])


async def test_connections_that_say_nothing_keep_nobody_from_a_page():
    """The one that has been silent longest is closed for another."""
    server = admin.AdminServer(LARGE_AND_PUBLIC, HostRule("127.0.0.1"), public=("/healthz",))
    port = await server.start("127.0.0.1", 0)
    async with contextlib.AsyncExitStack() as stack:
        silent = []
        for _ in range(admin._MAX_SILENT + 6):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            silent.append(reader)
        assert await status_of(port, "/healthz") == 200
        with contextlib.suppress(ConnectionError):
            assert await silent[0].read() == b""
        assert not silent[-1].at_eof()
    await server.stop()


async def test_peers_that_read_no_page_keep_no_supervisor_from_health():
    """They get no more pages, for as long as they hold those; probes are still answered."""
    server = admin.AdminServer(LARGE_AND_PUBLIC, HostRule("127.0.0.1"), public=("/healthz",))
    port = await server.start("127.0.0.1", 0)
    server._num_answered = admin._MAX_ANSWERED
    assert await status_of(port, "/page") == 503
    assert await status_of(port, "/healthz") == 200
    await server.stop()
