"""Processes that were stopped, and so say nothing: they are ended, and whoever waits for them gets an error."""

import asyncio
import os
import signal
import socket
from contextlib import aclosing, suppress

import msgspec
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, data_parallel, nodes, process
from tests.engine.test_api_servers import attached
from tests.engine.test_data_parallel import by_hand
from tests.engine.test_front import HandClient
from weft.core.aio import heartbeat
from weft.core.errors import EngineDead
from weft.core.values.types import SamplingParams
from weft.engine.api_servers import attached as attached_servers
from weft.engine.api_servers.client import ApiServerClient
from weft.engine.api_servers.messages import FromServer, ToServer
from weft.engine.front import calls
from weft.engine.front.calls import EngineCalls
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.messages import Beat, Reply

ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
PROMPT = {"prompt_token_ids": [5, 6, 7]}


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.02)


def give_up_soon(found: heartbeat.Heartbeat) -> None:
    """One beat without an answer is enough from now on."""
    found._max_unanswered = found._num_unanswered = 0


async def error_of(client, **options) -> BaseException | None:
    """How an answer ends that would go on for ever."""
    stream = client.generate(PROMPT, ENDLESS, "r", **options)
    async with aclosing(stream), asyncio.timeout(PATIENCE_S):
        try:
            async for _ in stream:
                pass
        except EngineDead as error:
            return error
    return None


async def test_a_stopped_engine_is_killed_and_its_requests_fail():
    """Its process answers no beat."""
    async with process(**ROOM) as client:
        child = client._child
        await until(lambda: child._heartbeat._num_unanswered >= 0)  # it has answered
        failed = asyncio.create_task(error_of(client))
        await until(lambda: client.num_active_requests)
        child.process.send_signal(signal.SIGSTOP)
        give_up_soon(child._heartbeat)
        assert "had not answered for 60 s" in str(await failed)
        async with asyncio.timeout(PATIENCE_S):
            await client.wait_closed()
    assert not psutil.pid_exists(child.process.pid)


@pytest.mark.slow
async def test_a_stopped_engine_of_several_is_started_again():
    """Calls to all return meanwhile, and a lock that one holds is free again."""
    async with data_parallel(**ROOM) as client:
        former = client._group.ranks[1].engine
        moved = asyncio.create_task(error_of(client, data_parallel_rank=1))
        await until(lambda: client._group.ranks[1].num_open)
        os.kill(former._child.process.pid, signal.SIGSTOP)
        calling = [
            asyncio.create_task(client.pause_generation()),
            asyncio.create_task(client.resume_generation()),
        ]
        give_up_soon(former._child._heartbeat)
        await until(lambda: client._group.ranks[0].num_open)  # the request goes on there
        assert "engine 1 ended unexpectedly" in str(former.dead_error)
        await client.abort("r")
        assert await moved is None
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*calling)
            await client.resume_generation()
        await until(
            lambda: client._group.ranks[1].is_live and client._group.ranks[1].client is not former
        )


@pytest.mark.slow
async def test_a_node_that_says_nothing_is_given_up():
    """Its connection stands, for its system answers the head's."""
    async with nodes(**ROOM) as client:
        engine = client._group.ranks[1].engine
        await until(lambda: engine._heartbeat._num_unanswered >= 0)
        moved = asyncio.create_task(error_of(client, data_parallel_rank=1))
        await until(lambda: client._group.ranks[1].num_open)
        engine._heartbeat.answered = lambda: None
        give_up_soon(engine._heartbeat)
        await until(lambda: client._group.ranks[0].num_open)  # the request goes on here
        assert "its node has not answered for 60 s" in str(engine.dead_error)
        await client.abort("r")
        assert await moved is None
        await until(
            lambda: client._group.ranks[1].is_live and client._group.ranks[1].client is not engine
        )


class Silent:
    """An engine whose process is there, and whose loop does not turn."""

    def __init__(self) -> None:
        self.sent = []
        self.calls = EngineCalls(self.sent.append)


async def test_an_engine_whose_loop_hangs_is_found(monkeypatch):
    """A ping is not answered; one that is, or comes while weights are loaded, is no reason."""
    monkeypatch.setattr(calls, "STUCK_S", 0.01)
    monkeypatch.setattr(calls, "STALL_S", 0.01)
    engine = Silent()
    stuck = asyncio.create_task(engine.calls.stuck())
    for number in range(3):
        await until(lambda: len(engine.sent) > number)  # noqa: B023 - called here only
        engine.calls.resolve(Reply(engine.sent[number].call_id))
    assert not stuck.done()
    async with asyncio.timeout(PATIENCE_S):
        await stuck


# -- API servers ------------------------------------------------------------------------------


async def test_a_call_does_not_wait_long_for_a_stopped_api_server(monkeypatch):
    """A lock is held meanwhile, for which calls of the others wait."""
    monkeypatch.setattr(attached_servers, "USE_S", 0.01)
    group, _ = await by_hand()
    async with attached(group) as (_, server), asyncio.timeout(PATIENCE_S):
        await server.use(group.vllm_config, [])


async def test_an_api_server_that_answers_beats_stays(tmp_path):
    """And it leaves a supervisor that has stopped: its requests get an error, and it ends."""
    engine = HandClient()
    config = msgspec.structs.replace(engine.vllm_config, api_server_directory=str(tmp_path))
    ours, theirs = socket.socketpair()
    channel, other = await Channel.open(ours, ToServer), await Channel.open(theirs, FromServer)
    client = await ApiServerClient.open("0.0", channel, config, engine.renderer)
    async with asyncio.timeout(PATIENCE_S):
        other.send(Beat())
        assert isinstance(await other.receive(), Beat)
        failed = asyncio.create_task(error_of(client))
        await until(lambda: client.num_active_requests)
        give_up_soon(client._heartbeat)
        assert "first process has not answered for 20 s" in str(await failed)
        assert not await client.wait_open()
    assert not client.is_orphaned  # its directory is another's still
    with suppress(ConnectionError):
        other.close()
