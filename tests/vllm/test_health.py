"""Whether an engine that still lives answers too: with an `AsyncLLM` of which only that is there."""

import asyncio

import pytest

from tests.vllm.hanging import connected
from weft.core.errors import EngineDead, Unavailable, Unsupported
from weft.core.values.controls import STALL_S
from weft.core.values.types import PoolingParams, RequestOptions, SamplingParams


@pytest.fixture
async def hanging():
    """The client of one, with a clock that is set by hand."""
    async with connected() as (client, llm, now):
        yield client, llm, now


async def test_an_engine_that_hangs_is_unhealthy(hanging):
    """Once it has not answered a ping for long; not because nobody asked it anything."""
    client, llm, now = hanging
    now[0] += 10 * STALL_S
    await client.check_health()  # an idle engine: this is the ping
    now[0] += STALL_S + 1
    with pytest.raises(Unavailable, match="has not answered for 31 s"):
        await client.check_health()
    llm.answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await client.check_health()


async def test_a_dead_engine_is_unhealthy_at_once(hanging):
    """And takes nothing."""
    client, llm, _ = hanging
    llm.errored = True
    with pytest.raises(EngineDead):
        await client.check_health()
    with pytest.raises(EngineDead), client.preparing(1):
        pass
    assert client.errored


async def test_an_engine_that_cannot_abort_is_shut_down_all_the_same(hanging):
    """Else its processes would stay, and who waits for the end would get the error of a request."""
    client, llm, _ = hanging
    request = await client.prepare("a", SamplingParams(), RequestOptions(request_id="r"))
    with client._following(request):  # vLLM's package is not there to run it
        client.shutdown()
        await client.wait_closed()
    assert llm.is_shut_down


async def test_pooling_on_a_rank_of_ones_choice_is_refused(hanging):
    """vLLM takes none for it."""
    client, _, _ = hanging
    options = RequestOptions(request_id="r", data_parallel_rank=0)
    with pytest.raises(Unsupported, match="data_parallel_rank"):
        await client.prepare("a", PoolingParams(task="embed"), options)
