"""More ranks of vLLM's, or fewer: what is handed on, and what this side knows then. No vLLM is needed."""

import asyncio

import pytest

from tests.vllm.hanging import connected
from weft.core.errors import BadRequest, DeadlineExceeded, Unavailable, Unsupported
from weft.core.values.types import RequestOptions, SamplingParams


@pytest.fixture
async def elastic():
    """The client of an engine whose ranks may change."""
    async with connected(is_elastic=True) as (client, llm, _):
        yield client, llm


async def loads(client) -> list[int]:
    return [load.data_parallel_rank for load in await client.get_loads()]


async def on_rank(client, rank: int):
    options = RequestOptions(request_id="r", data_parallel_rank=rank)
    return await client.prepare("a", SamplingParams(), options)


async def test_new_ranks_are_known_when_it_is_done(elastic):
    """Their loads are heard of, and requests may name them; meanwhile a second change has to wait."""
    client, llm = elastic
    with pytest.raises(BadRequest, match="data_parallel_rank"):
        await on_rank(client, 2)
    scaling = asyncio.create_task(client.scale_elastic_ep(3, 1.5))
    await asyncio.sleep(0)
    assert await client.is_scaling_elastic_ep()
    with pytest.raises(Unavailable, match="being changed already"):
        await client.scale_elastic_ep(2)
    assert await loads(client) == [0]
    llm.answer.set()
    await scaling
    assert not await client.is_scaling_elastic_ep()
    assert llm.scaled == [(3, 2)]
    assert await loads(client) == [0, 1, 2]
    assert (await on_rank(client, 2)).data_parallel_rank == 2
    assert [hasattr(one, "is_ours") for one in llm.logger_manager.stat_loggers] == [False, True]
    await client.scale_elastic_ep(1)
    assert await loads(client) == [0]


async def test_what_has_not_ended_in_time_keeps_all_ranks(elastic):
    """As vLLM says; another change may follow."""
    client, llm = elastic
    llm.answer.set()
    with pytest.raises(DeadlineExceeded, match="Timeout"):
        await client.scale_elastic_ep(5)
    assert await loads(client) == [0]
    await client.scale_elastic_ep(2)
    assert await loads(client) == [0, 1]


async def test_numbers_that_are_none_are_refused(elastic):
    """And an engine that is not elastic refuses all."""
    client, llm = elastic
    with pytest.raises(BadRequest, match="new_data_parallel_size"):
        await client.scale_elastic_ep(0)
    with pytest.raises(BadRequest, match="drain_timeout"):
        await client.scale_elastic_ep(2, 0)
    assert llm.scaled == []
    async with connected() as (fixed, _, _):
        with pytest.raises(Unsupported, match="--enable-elastic-ep"):
            await fixed.scale_elastic_ep(2)
