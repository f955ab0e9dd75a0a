"""SIGSTOP of each process of a server under load: every request ends within the time that docs/failures.md states."""

import asyncio
import signal
import time

import grpc
import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S, stretched, until
from tests.cli.running import running
from tests.cli.test_api_servers import Clients, api_servers, begin, served
from tests.faults.test_engine_death import SLOW_ECHO, calling
from weft.core.values.controls import HUNG_S, SERVER_HUNG_S

pytestmark = pytest.mark.slow

ZOMBIE = psutil.STATUS_ZOMBIE  # an ended process whose parent is stopped, and so cannot reap it
MARGIN_S = 10.0  # for beats, the end of a process and the errors


async def within(limit_s: float, *tasks: asyncio.Task) -> None:
    """Return when all have ended, however they did."""
    _, open_tasks = await asyncio.wait(tasks, timeout=stretched(limit_s))
    assert not open_tasks


async def is_answered(clients: Clients, path: str) -> bool:
    """Whether a call got an answer; one that a stopped process had taken gets none, and ends with its process."""
    try:
        return (await clients.call("POST", path)).status_code == 200
    except httpx2.HTTPError:
        return False


async def test_a_stopped_api_server_is_replaced_and_the_other_answers():
    """Calls that concern both return, those that came to the stopped one fail, and streams of the other go on."""
    with served() as server:
        clients = Clients(server)
        streams = await begin(clients, 12)
        stopped, other = api_servers(server)
        stopped.send_signal(signal.SIGSTOP)
        calls = [
            asyncio.create_task(is_answered(clients, path))
            for path in (
                "/pause?mode=keep",
                "/resume",
                "/reset_prefix_cache",
                "/pause?mode=keep",
                "/resume",
            )
        ]
        await within(SERVER_HUNG_S + MARGIN_S, *calls)
        assert psutil.wait_procs([stopped], PATIENCE_S)[1] == []
        async with asyncio.timeout(PATIENCE_S):
            while len(api_servers(server)) < 2:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.1)
            while not await is_answered(clients, "/resume"):
                pass
            while not await is_answered(clients, "/pause?mode=abort"):
                pass
        await within(MARGIN_S, *streams)
        assert other in api_servers(server)
        assert any(not stream.exception() for stream in streams)


async def test_a_stopped_supervisor_is_left_by_its_api_servers_and_starts_them_again():
    """It has the engines: nothing can be answered without it, and nobody is to wait."""
    with served() as server:
        clients = Clients(server)
        streams = await begin(clients, 4)
        former = api_servers(server)
        server.send(signal.SIGSTOP)
        try:
            asked = [asyncio.create_task(is_answered(clients, "/pause")) for _ in range(4)]
            await within(SERVER_HUNG_S + MARGIN_S, *streams, *asked)
            assert not any([await one for one in asked])
            await until(
                lambda: all(not one.is_running() or one.status() == ZOMBIE for one in former)
            )
        finally:
            server.send(signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while not await is_answered(clients, "/resume"):  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.1)
        assert not set(former) & set(api_servers(server))


def test_a_stopped_engine_ends_its_server():
    """As one that is killed: every call gets UNAVAILABLE, and what supervises the server starts it again."""
    with running(SLOW_ECHO) as server, calling(server) as (_, callers):
        began = time.monotonic()
        server.engine.suspend()
        status, log = server.wait()
        assert time.monotonic() - began < stretched(HUNG_S + MARGIN_S)
        for caller in callers:
            caller.join(PATIENCE_S)
    assert status == 1
    assert {caller.status for caller in callers} == {grpc.StatusCode.UNAVAILABLE}
    assert f"it had not answered for {HUNG_S:g} s" in log.splitlines()[-1]


async def test_a_stopped_engine_of_several_is_replaced():
    """Its requests go on at the other, calls to all are answered, and both are there again."""
    with served("--data-parallel-size", "2", "--num-threads", "2", count=1) as server:
        clients = Clients(server)
        stopped, other = server.front.children()
        stopped.suspend()
        body = {"prompt": [5, 6], "max_tokens": 2}
        asked = [
            asyncio.create_task(clients.call("POST", "/v1/completions", json=body))
            for _ in range(8)
        ]
        calls = [
            asyncio.create_task(is_answered(clients, path))
            for path in ("/reset_prefix_cache", "/resume")
        ]
        await within(HUNG_S + MARGIN_S, *asked, *calls)
        assert {(await one).status_code for one in asked} == {200}
        assert all([await one for one in calls])
        while (await clients.call("GET", "/health")).text == "degraded":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        engines = server.front.children()
    assert other in engines
    assert stopped not in engines
    assert len(engines) == 2
