"""Several servers as one engine: who gets a request, and what becomes of it when a server fails."""

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from tests.busy import PATIENCE_S, until
from tests.doubles.fake_engine import FakeEngine, make_config, overloaded
from tests.rpc.calls import PROMPT
from tests.rpc.test_client import TOKENIZER_FILES
from weft.core.errors import ConfigError, Overloaded, Unavailable
from weft.core.values.types import OutputKind, SamplingParams
from weft.rpc.fleet import Fleet
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, output_kind=OutputKind.DELTA)


# Where connections of this machine do not begin: a port that a server has left stays free.
HOST = "127.0.0.3"


async def serve(engine, stack, port=0):
    """A gRPC server for `engine`, and its address."""
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(host=HOST, port=port))
    port = await server.start()
    stack.push_async_callback(server.stop)
    return server, f"{HOST}:{port}"


@asynccontextmanager
async def fleet_of(engines):
    """A fleet over one server for each engine, with the servers."""
    async with AsyncExitStack() as stack:
        served = [await serve(engine, stack) for engine in engines]
        fleet = await Fleet.connect([target for _, target in served])
        try:
            yield fleet, [server for server, _ in served]
        finally:
            fleet.shutdown()
            await fleet.wait_closed()


async def tokens(fleet, request_id="r", prompt=PROMPT):
    """The tokens of one answer."""
    stream = fleet.generate({"prompt_token_ids": prompt}, PARAMS, request_id)
    async with aclosing(stream) as outputs:
        return [
            token_id
            async for output in outputs
            for answer in output.outputs
            for token_id in answer.token_ids
        ]


async def test_open_requests_are_spread():
    """Requests count as load from the moment they are sent, before any server has told of them."""
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.hold()
    async with fleet_of(engines) as (fleet, _):
        tasks = [asyncio.create_task(tokens(fleet, f"r{i}")) for i in range(6)]
        for engine in engines:
            async with asyncio.timeout(PATIENCE_S):
                await engine.wait_for_open(3)
        assert fleet.num_active_requests == 6
        for engine in engines:
            await engine.run_freely()
        answers = await asyncio.gather(*tasks)
        assert fleet.num_active_requests == 0
    assert all(len(answer) == 4 for answer in answers)


async def test_a_busy_server_gets_no_more():
    """What a server tells of its queue decides."""
    engines = [FakeEngine(), FakeEngine()]
    engines[0].load = type(engines[0].load)(num_waiting=50, max_total_tokens=1024, max_running=8)
    async with fleet_of(engines) as (fleet, _):
        await until(lambda: any(member.load for member in fleet._members.all))
        for number in range(5):
            await tokens(fleet, f"r{number}")
        assert [len(engine.calls) for engine in engines] == [0, 5]


async def test_a_refused_request_goes_to_another_server():
    """Overload of one is no refusal of all; the answer is that of the other, whole."""
    engines = [FakeEngine(), FakeEngine()]
    engines[0].refusal = overloaded()
    async with fleet_of(engines) as (fleet, _):
        assert all([len(await tokens(fleet, f"r{i}")) == 4 for i in range(4)])
        engines[1].refusal = overloaded()
        with pytest.raises(Overloaded):
            await tokens(fleet, "last")


async def test_a_stream_that_has_begun_is_not_begun_again():
    """Whoever has read a part must not get it twice: the request fails."""
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.hold()
    async with fleet_of(engines) as (fleet, servers):
        stream = fleet.generate({"prompt_token_ids": PROMPT}, PARAMS, "r")
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: any(engine.calls for engine in engines))
        position = 0 if engines[0].calls else 1
        await engines[position].allow(1)
        assert (await first).outputs[0].token_ids
        await engines[position].die()
        with pytest.raises(Unavailable):
            async for _ in stream:
                pass
        assert len(engines[1 - position].calls) == 0
        assert servers


async def test_a_server_that_is_gone_is_left_out_and_comes_back():
    """Health follows the server; with none left, requests are refused and so is health."""
    async with AsyncExitStack() as stack:
        engines = [FakeEngine(), FakeEngine()]
        (first, first_at), (second, second_at) = [await serve(one, stack) for one in engines]
        fleet = await Fleet.connect([first_at, second_at])
        stack.push_async_callback(fleet.wait_closed)
        stack.callback(fleet.shutdown)
        await first.stop()
        assert all([len(await tokens(fleet, f"a{i}")) == 4 for i in range(4)])
        assert len(engines[0].calls) == 0
        await second.stop()
        with pytest.raises(Unavailable):
            await tokens(fleet, "none")
        with pytest.raises(Unavailable, match="no server"):
            await fleet.check_health()
        await serve(engines[0], stack, port=int(first_at.rpartition(":")[2]))
        await until(lambda: any(member.is_healthy for member in fleet._members.all))
        await fleet.check_health()
        assert len(await tokens(fleet, "again")) == 4


async def test_servers_of_different_models_are_no_fleet():
    """Answers would depend on where a request went; the error names both servers and what differs."""
    async with AsyncExitStack() as stack:
        _, one = await serve(FakeEngine(make_config(max_model_len=64)), stack)
        _, other = await serve(FakeEngine(make_config(max_model_len=128)), stack)
        with pytest.raises(ConfigError, match=f"{other}.*{one}.*max_model_len"):
            await Fleet.connect([one, other])


async def test_every_server_has_to_answer_at_the_start():
    """A wrong address is told at once, by name."""
    async with AsyncExitStack() as stack:
        _, target = await serve(FakeEngine(), stack)
        # It is the first error that is told: that of the other, if it was slow, would be the second.
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1$"):
            await Fleet.connect(["127.0.0.1:1", target], timeout_s=0.3)


async def test_aborts_reach_the_server_that_has_the_request():
    """Ids are looked for everywhere."""
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.hold()
    async with fleet_of(engines) as (fleet, _):
        task = asyncio.create_task(tokens(fleet, "mine"))
        await until(lambda: any(engine.num_active_requests for engine in engines))
        await fleet.abort("mine")
        assert await asyncio.wait_for(task, PATIENCE_S) == []
