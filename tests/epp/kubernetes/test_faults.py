import asyncio
import json
import random
import time
from dataclasses import replace

import pytest

from tests.doubles.api_server import PODS, POOLS, ApiServerDouble
from tests.epp.kubernetes.cluster import HURRY, NAMED, following, pod, put_pods, where
from tests.epp.pools import until
from weft.epp.kubernetes.api import connect
from weft.epp.kubernetes.discovery import Wanted
from weft.epp.kubernetes.reflector import Kind, Object, Reflector
from weft.epp.pool.pool import Pool

BY_SELECTOR = Wanted(selector="app=vllm", target_ports="8000", namespace="ns")


def event(kind: str, made: object) -> bytes:
    return json.dumps({"type": kind, "object": made}).encode() + b"\n"


async def test_a_torn_watch_goes_on_where_it_was(api: ApiServerDouble):
    """What happened meanwhile comes with the next watch, deletions too; nothing is listed again."""
    put_pods(api, PODS, pod(1), pod(2))
    pool = Pool()
    async with following(pool, BY_SELECTOR):
        await until(lambda: api.watches)
        await api.stop()
        api.delete(PODS, "p1")
        api.put(PODS, pod(3))
        assert len(pool) == 2
        await api.start()
        await until(lambda: where(pool) == {"10.0.0.2:8000", "10.0.0.3:8000"})
    assert len(api.lists) == 1
    assert int(api.watches[-1].params["resourceVersion"]) >= 103


async def test_a_version_that_is_gone_makes_a_list(api: ApiServerDouble):
    """Who left meanwhile is gone too: the list is all there is."""
    put_pods(api, PODS, pod(1), pod(2))
    pool = Pool()
    async with following(pool, BY_SELECTOR):
        await until(lambda: api.watches)
        await api.stop()
        api.delete(PODS, "p1")
        api.put(PODS, pod(3))
        api.compact()
        await api.start()
        await until(lambda: where(pool) == {"10.0.0.2:8000", "10.0.0.3:8000"})
    assert len(api.lists) == 2


async def test_bookmarks_move_the_place_of_the_watch(api: ApiServerDouble):
    """So that a quiet selector need not list after a compaction."""
    put_pods(api, PODS, pod(1))
    mark = {"kind": "Pod", "metadata": {"resourceVersion": "150", "creationTimestamp": None}}
    api.watch_bytes.append(event("BOOKMARK", mark))
    pool = Pool()
    async with following(pool, BY_SELECTOR):
        api.revision = 150
        await until(lambda: len(api.watches) == 2)
        assert len(pool) == 1
    assert api.watches[0].params["allowWatchBookmarks"] == "true"
    assert api.watches[1].params["resourceVersion"] == "150"


async def test_a_busy_server_is_given_the_time_it_asks_for(api: ApiServerDouble):
    """`Retry-After` of a 429 is kept to."""
    put_pods(api, PODS, pod(1))
    api.refusals.append((429, "retry-after: 1\r\n"))
    pool = Pool()
    started = time.monotonic()
    async with following(pool, BY_SELECTOR):
        assert len(pool) == 1
    assert time.monotonic() - started >= 1
    assert len(api.lists) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503, 504])
async def test_refusals_leave_the_pool_as_it_is(
    api: ApiServerDouble, status: int, caplog: pytest.LogCaptureFixture
):
    """Said once, not each time; and it catches up afterwards."""
    put_pods(api, PODS, pod(1))
    pool = Pool()
    async with following(pool, BY_SELECTOR):
        await until(lambda: api.watches)
        api.refusals.extend([(status, "")] * 4)
        await api.tear()
        api.put(PODS, pod(2))
        await until(lambda: not api.refusals)
        assert len(pool) >= 1
        await until(lambda: len(pool) == 2)
    assert len([each for each in caplog.messages if f"HTTP {status}" in each]) <= 1


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\n",
        b"not JSON\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "RENAMED", "object": {"metadata": {}}}\n',
        event("ERROR", {"kind": "Status", "code": 500, "message": "etcd"}),
        event("ERROR", {"kind": "Status", "code": 410, "message": "old"}),
        event("ADDED", pod(9))[:-40],
        b"x" * (5 * 2**20),
    ],
    ids=["end", "empty", "text", "part", "unknown", "error", "gone", "half", "long"],
)
async def test_a_strange_stream_empties_nothing(api: ApiServerDouble, said: bytes, caplog):
    """Neither does it add anything, nor end the following."""
    put_pods(api, PODS, pod(1))
    api.watch_bytes.append(said)
    pool = Pool()
    left = []
    pool.on_left(left.append)
    async with following(pool, BY_SELECTOR):
        await until(lambda: len(api.watches) >= 2)
        assert where(pool) == {"10.0.0.1:8000"}
        api.put(PODS, pod(2))
        await until(lambda: len(pool) == 2)
    assert left == []
    assert "Traceback" not in caplog.text


async def test_a_defect_is_logged_with_its_traceback(api: ApiServerDouble, caplog):
    """And what was found is followed all the same."""
    put_pods(api, PODS, pod(1))
    server = connect("ns")
    reflector = Reflector(server, Kind(path=PODS, type=Object), {}.popitem, HURRY)
    running = asyncio.create_task(reflector.run())
    await until(lambda: len(api.watches) >= 2 or caplog.text.count("popitem()") >= 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.close()
    assert "Traceback" in caplog.text
    assert len(reflector.objects) == 1


async def test_streams_that_end_at_once_are_no_busy_loop(api: ApiServerDouble):
    """Each pause is longer than the one before, up to a bound."""
    put_pods(api, PODS, pod(1))
    api.watch_bytes.extend([b""] * 1000)
    async with following(Pool(), BY_SELECTOR):
        started = time.monotonic()
        await until(lambda: len(api.watches) >= 12)
        took_s = time.monotonic() - started
    assert took_s >= 0.4  # the shortest of ten pauses, of which the first may be over


async def test_a_server_that_says_nothing_is_asked_again(api: ApiServerDouble):
    """A dead connection looks like a quiet one; it is given up after a while."""
    put_pods(api, PODS, pod(1))
    pool = Pool()
    pace = replace(HURRY, watch_s=0.5, idle_s=1.0, list_s=1.0)
    async with following(pool, BY_SELECTOR, pace):
        await until(lambda: api.watches)
        api.is_mute = True
        await api.tear()
        asked = len(api.asked)
        await until(lambda: len(api.asked) >= asked + 2)
        assert len(pool) == 1
        api.put(PODS, pod(2))
        api.is_mute = False
        await until(lambda: len(pool) == 2)


async def test_a_server_that_is_not_there_yet_is_waited_for(
    api: ApiServerDouble, monkeypatch: pytest.MonkeyPatch
):
    """The picker starts, and says that it knows nothing; then it does."""
    monkeypatch.setattr("weft.epp.kubernetes.discovery._FIRST_SYNC_S", 0.05)
    put_pods(api, PODS, pod(1))
    await api.stop()
    pool = Pool()
    async with following(pool) as discovery:
        assert not discovery.has_synced
        await api.start()
        await until(lambda: discovery.has_synced)
        assert len(pool) == 1


async def test_lists_come_in_pages(api: ApiServerDouble):
    """Only the whole of them counts: a page that fails leaves what was known."""
    api.page = 3
    put_pods(api, PODS, *(pod(number) for number in range(1, 9)))
    pool = Pool()
    left = []
    pool.on_left(left.append)
    async with following(pool, BY_SELECTOR):
        assert len(pool) == 8
        assert len(api.lists) == 3
        await until(lambda: api.watches)
        api.compact()
        api.put(PODS, pod(9))
        api.compact()
        await api.tear()
        await until(lambda: len(pool) == 9)
    assert left == []


async def test_one_pod_that_cannot_be_read_harms_no_other(api: ApiServerDouble):
    """It is reported; what was known of it stays."""
    odd = pod(2)
    odd["status"] = {"conditions": "yes"}
    put_pods(api, PODS, pod(1), odd)
    pool = Pool()
    async with following(pool, BY_SELECTOR):
        assert where(pool) == {"10.0.0.1:8000"}
        api.put(PODS, {**pod(1), "status": 7})
        api.put(PODS, pod(3, ip="not an address"))
        api.put(PODS, pod(4))
        await until(lambda: where(pool) == {"10.0.0.1:8000", "10.0.0.4:8000"})
        api.compact()
        await api.tear()
        api.put(PODS, pod(5))
        api.compact()
        await until(lambda: len(pool) == 3)
        assert "10.0.0.1:8000" in where(pool)


async def test_there_is_an_end_to_pods(api: ApiServerDouble, caplog: pytest.LogCaptureFixture):
    """Those beyond it are ignored, and the log says so once."""
    put_pods(api, PODS, *(pod(number) for number in range(1, 6)))
    pool = Pool()
    async with following(pool, BY_SELECTOR, replace(HURRY, max_objects=4)):
        assert len(pool) == 4
        api.put(PODS, pod(6))
        api.delete(PODS, "p1")
        await until(lambda: len(pool) == 3)
        api.put(PODS, pod(7))
        await until(lambda: len(pool) == 4)
    assert len([each for each in caplog.messages if "more than 4 objects" in each]) == 1


class Traffic:
    """Picks endpoints without end, and notes each that should not have been there."""

    def __init__(self, pool: Pool, at_least: int) -> None:
        self.gone: set[str] = set()
        self.wrong: list[str] = []
        self.num_picks = 0
        self._pool = pool
        self._at_least = at_least

    async def run(self) -> None:
        while True:
            endpoints = list(self._pool)
            if len(endpoints) < self._at_least:
                self.wrong.append(f"{len(endpoints)} left")
            elif (picked := random.choice(endpoints).host_port) in self.gone:
                self.wrong.append(picked)
            self.num_picks += 1
            await asyncio.sleep(0)


async def lose(api: ApiServerDouble, pool: Pool) -> None:
    """Have the API server away for a while."""
    known = where(pool)
    await api.stop()
    await asyncio.sleep(0.1)
    assert where(pool) == known
    await api.start()


async def test_a_rolling_update_outlives_the_api_server_twice(api: ApiServerDouble):
    """20 pods are replaced one by one: none that has gone is picked, none that serves is missing."""
    pool = Pool()
    put_pods(api, PODS, *(pod(number) for number in range(1, 21)))
    serving = {f"10.0.0.{number}:8000" for number in range(1, 21)}
    traffic = Traffic(pool, at_least=20)
    async with following(pool, NAMED):
        picking = asyncio.create_task(traffic.run())
        for number in range(1, 21):
            api.put(PODS, pod(100 + number, ip=f"10.0.1.{number}"))
            serving.add(f"10.0.1.{number}:8000")
            if number in {6, 14}:
                if number == 14:
                    api.compact()
                await lose(api, pool)
            await until(lambda: where(pool) == serving)
            api.put(PODS, pod(number, deletionTimestamp="2026-01-01T00:00:00Z"))
            serving.discard(f"10.0.0.{number}:8000")
            if number in {7, 15}:
                await api.tear()
            await until(lambda: where(pool) == serving)
            api.delete(PODS, f"p{number}")
            traffic.gone.add(f"10.0.0.{number}:8000")
        picking.cancel()
    assert traffic.wrong == []
    assert traffic.num_picks > 20
    assert where(pool) == {f"10.0.1.{number}:8000" for number in range(1, 21)}
    assert any(each.path == POOLS for each in api.watches)
