"""`weft.AsyncLLM`: an engine for a block of a program that has an event loop."""

import asyncio

import pytest

import weft
from weft.core.errors import BadRequest, EngineDead
from weft.core.values.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


async def answer(engine, prompt, request_id):
    """The last of the outputs, which are deltas or repeat what was said before."""
    async for output in engine.generate(prompt, GREEDY, request_id):
        last = output
    return last


async def test_requests_run_beside_each_other_and_as_an_llm_runs_them():
    """The same tokens; what is left open when the block ends, ends too."""
    prompts = ["The capital of France is", "Hello", [5, 6, 7]]
    with weft.LLM(max_num_seqs=4) as llm:
        expected = [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY)]
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    async with weft.AsyncLLM(max_num_seqs=4) as engine:
        answers = await asyncio.gather(*(answer(engine, p, str(i)) for i, p in enumerate(prompts)))
        endless = engine.generate("Hello", params, "open")
        await anext(endless)
    assert [list(one.outputs[0].token_ids) for one in answers] == expected
    assert not engine.is_running
    with pytest.raises(EngineDead):
        await answer(engine, "Hello", "late")
    await endless.aclose()


async def test_options_are_those_of_an_llm():
    """What is unknown is refused by name, and nothing was started."""
    with pytest.raises(BadRequest, match="max_num_sequences"):
        async with weft.AsyncLLM(max_num_sequences=4):
            pass
