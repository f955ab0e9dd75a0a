"""vLLM's engine on several ranks: tensors divided give the same tokens, and requests divided the same answers."""

import asyncio

import pytest

from tests.busy import until
from tests.vllm.engines import FINAL, LONG, PROMPT, engine, final
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SCORED = SamplingParams(max_tokens=16, logprobs=2, **FINAL)


@pytest.fixture
def of_one(checkpoint):
    """What an engine of ours, which the other tests hold vLLM's to, answers."""

    async def answer():
        found = open_model(str(checkpoint))
        options = EngineOptions(
            model=str(checkpoint), max_model_len=256, num_gpu_blocks_override=64
        )
        ours = await LocalClient.start(found, resolve(options, found.card, 1 << 30))
        try:
            return (await final(ours, SCORED)).outputs[0]
        finally:
            ours.shutdown()
            await ours.wait_closed()

    return answer


async def test_tensors_on_two_ranks_give_the_same_tokens(checkpoint, of_one, monkeypatch):
    """A list of CPUs for each, as vLLM wants them."""
    expected = await of_one()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    async with engine(checkpoint, {"tensor_parallel_size": 2}, max_model_len=256) as client:
        answer = (await final(client, SCORED)).outputs[0]
        (load,) = await client.get_loads()
        assert await client.collective_rpc("check_health") == [None, None]
    assert answer.token_ids == expected.token_ids
    assert answer.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-2)
    assert load.num_blocks > 0


async def test_requests_are_divided_among_two_ranks(checkpoint, of_one, monkeypatch):
    """Each has a load and a cache of its own; a rank that is not there is refused."""
    expected = await of_one()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    async with engine(checkpoint, data_parallel_size=2, max_model_len=256) as client:
        for rank in (0, 1):
            answer = await final(client, SCORED, data_parallel_rank=rank)
            assert answer.outputs[0].token_ids == expected.token_ids
        loads = await client.get_loads()
        assert [load.data_parallel_rank for load in loads] == [0, 1]
        total = client._llm.vllm_config.cache_config.num_gpu_blocks
        assert sum(load.num_blocks for load in loads) in (total, total - 1)

        async def begun(rank):
            outputs = client.generate(PROMPT, LONG, f"r{rank}", data_parallel_rank=rank)
            await anext(outputs)
            return outputs

        running = [await begun(rank) for rank in (0, 1)]
        assert [load.num_running for load in await client.get_loads()] == [1, 1]
        for outputs in running:
            await outputs.aclose()
        await until(lambda: client.num_active_requests == 0)
        with pytest.raises(BadRequest, match="rank"):
            await final(client, SCORED, data_parallel_rank=2)
        answers = await asyncio.gather(*(final(client, SCORED) for _ in range(6)))
        assert {tuple(one.outputs[0].token_ids) for one in answers} == {tuple(expected.token_ids)}
        await client.check_health()
