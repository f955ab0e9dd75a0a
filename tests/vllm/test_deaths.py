"""vLLM's engine is killed: whatever it was at, callers learn of it, and nothing hangs."""

import asyncio

import pytest

from tests.busy import PATIENCE_S, until
from tests.vllm.engines import FINAL, LONG, PROMPT, cores, engine, final
from weft.core.errors import EngineDead
from weft.core.values.types import RequestOptions, SamplingParams

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def reading(client, prompt=PROMPT, params=LONG):
    """All outputs of a request, until it ends."""
    return [output async for output in client.generate(prompt, params, "r")]


async def idle(client):
    """Nobody waits for it."""
    return []


async def prefill(client):
    """At a prompt that is computed in many steps: nothing has come of it."""
    prompts = [{"prompt_token_ids": [i, *range(100, 390), *range(90, 300)]} for i in range(64)]
    tasks = [asyncio.create_task(reading(client, prompt)) for prompt in prompts]
    await until(lambda: client.num_active_requests == len(tasks))
    return tasks


async def decode(client):
    """In the middle of answers, of one request and of several."""
    streams = [client.generate(PROMPT, LONG, f"r{i}") for i in range(3)]
    for stream in streams:
        await anext(stream)

    async def rest(stream):
        return [output async for output in stream]

    return [asyncio.create_task(rest(stream)) for stream in streams]


async def paused(client):
    """With a request that waits for it to go on."""
    await client.pause_generation()
    task = asyncio.create_task(reading(client))
    await until(lambda: client.num_active_requests == 1)
    return [task]


async def aborting(client):
    """Just as requests are ended by their caller."""
    tasks = await decode(client)
    ending = asyncio.create_task(client.abort([f"r{i}" for i in range(2)]))
    return [tasks[2], ending]


@pytest.mark.parametrize("phase", [idle, prefill, decode, paused, aborting])
async def test_a_killed_engine_is_noticed(checkpoint, phase):
    """Its requests end with that error, or had ended; nothing new is begun, and health says why."""
    async with engine(checkpoint, max_model_len=1000) as client:
        await final(client, SamplingParams(max_tokens=2, **FINAL))
        tasks = await phase(client)
        for process in cores():
            process.kill()
        ends = await asyncio.wait_for(
            asyncio.gather(*tasks, return_exceptions=True), timeout=PATIENCE_S
        )
        await until(lambda: client.errored)
        failed = [end for end in ends if isinstance(end, BaseException)]
        assert all(isinstance(end, EngineDead) for end in failed), failed
        assert failed or phase in (idle, aborting)
        assert (client.is_running, client.is_stopped) == (False, True)
        assert client.num_active_requests == 0
        with pytest.raises(EngineDead):
            await client.check_health()
        with pytest.raises(EngineDead):
            await client.prepare(PROMPT, SamplingParams(), RequestOptions(request_id="late"))
        with pytest.raises(EngineDead):
            await client.reset_prefix_cache()
        await asyncio.wait_for(client.wait_closed(), timeout=PATIENCE_S)
    assert not cores()
