"""What clients list of the requests that their engine holds, and which cannot."""

import asyncio

import pytest

from tests.busy import PATIENCE_S
from tests.contract.engines import ENGINES, ROOM, kinds, until_idle
from tests.contract.test_engine_client import ENDLESS, PROMPT
from weft.core.errors import Unsupported
from weft.core.values.engine_snapshots import RequestPhase


@pytest.fixture(params=kinds("local", "process", "data_parallel", "nodes", "api_server"))
async def engine(request):
    """The clients whose engine is ours, and on this machine."""
    async with ENGINES[request.param](**ROOM) as client:
        yield client


async def test_what_is_under_way_is_listed(engine):
    """Each answer with its phase and blocks while it is there, and among the finished afterwards."""
    stream = engine.generate(PROMPT, ENDLESS, "open")
    await anext(stream)
    states = await listed(engine)
    [state] = states.requests
    assert state.phase in (RequestPhase.PREFILL, RequestPhase.DECODE)
    assert (state.num_prompt_tokens, state.is_running) == (len(PROMPT["prompt_token_ids"]), True)
    assert 0 < state.num_blocks == states.num_held_blocks < states.num_blocks
    await stream.aclose()
    await until_idle(engine)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            states = await listed(engine)
            if not states.requests:
                break
            await asyncio.sleep(0.05)  # what was said is kept for a while
    assert state.number in [one.number for one in states.finished]


async def listed(engine):
    """The states of the rank that was chosen, which is the only one that has any."""
    every = await engine.get_request_states()
    return next((one for one in every if one.requests or one.finished), every[0])


@pytest.mark.parametrize("kind", ["rpc", "fleet"])
async def test_the_wire_lists_no_requests(kind):
    """vLLM's protocol has no call for it."""
    async with ENGINES[kind]() as client:
        with pytest.raises(Unsupported, match="get_request_states"):
            await client.get_request_states()
