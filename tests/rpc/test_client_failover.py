"""Requests of `RpcClient` outlast their server where that is wanted: they go on when it answers again."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import local
from tests.rpc.test_fleet_failover import Cutter, answers_of, check_cuts, prepared, serve
from weft.core.errors import EngineLost, GenerationError, Unavailable
from weft.core.values.types import FinishReason
from weft.rpc.client import RpcClient

CASES = {
    "logprobs of three answers": {"seed": 6, "n": 3, "logprobs": 2},
    "stop strings": {"seed": 1, "logit_bias": {97: 100.0, 98: 100.0}, "stop": ["aab"]},
}


class Resuming(RpcClient):
    """Looks at its server as a fleet does."""

    @property
    def _members(self):
        return self._continuing.members


@asynccontextmanager
async def client_of(engine):
    """A client whose requests outlast its server; it knows the server's fingerprint."""
    async with AsyncExitStack() as stack:
        client = await Resuming.connect(await serve(engine, stack), resumes=True)
        stack.push_async_callback(client.close)
        await client._members.refresh()
        yield client


async def test_every_cut_gives_the_undisturbed_answer():
    """The server is equal when it answers again at its address."""
    cutter = Cutter()
    async with local() as engine, client_of(cutter.wrap(engine)) as client:
        for params in CASES.values():
            await check_cuts(client, cutter, params, step=4)


async def test_a_request_that_ends_its_server_twice_is_given_up():
    """It is not sent a third time."""
    cutter = Cutter()
    async with local() as engine, client_of(cutter.wrap(engine)) as client:
        cutter.places = [0, 0]
        with pytest.raises(GenerationError, match="two servers have ended"):
            await answers_of(client, await prepared(client))
    assert len(cutter.requests) == 2


async def test_a_waiting_request_can_be_aborted_or_ends_with_the_client():
    """An aborted one has the tokens so far; with the client it gets an error."""
    cutter = Cutter()
    async with local() as engine, client_of(cutter.wrap(engine)) as client:
        cutter.places, cutter.stays_dead = [3, 3], True
        requests = [await prepared(client, name) for name in ("aborted", "closed")]
        aborted, closed = (asyncio.create_task(answers_of(client, one)) for one in requests)
        await until(lambda: len(client._members.resuming._waiting) == 2)
        await client.abort("aborted")
        async with asyncio.timeout(PATIENCE_S):
            answers, _ = await aborted
        assert answers[0][3] is FinishReason.ABORT
        await client.close()
        with pytest.raises(Unavailable, match="was closed"):
            await closed


async def test_a_request_gets_the_error_unless_it_shall_outlast_its_server():
    """The error has the fingerprint, for programs that continue requests themselves."""
    cutter = Cutter()
    async with local() as engine, AsyncExitStack() as stack:
        client = await RpcClient.connect(await serve(cutter.wrap(engine), stack))
        stack.push_async_callback(client.close)
        while not (report := await client.get_server_info()).fingerprint:
            pass
        cutter.places = [2]
        with pytest.raises(EngineLost) as lost:
            await answers_of(client, await prepared(client))
    assert lost.value.fingerprint == report.fingerprint
