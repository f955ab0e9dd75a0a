"""Engines of vLLM's for tests. One at a time: each has the memory and the CPUs for itself."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psutil

from tests.vllm.environment import CACHE
from weft.core.config.engine_options import EngineOptions
from weft.core.values.types import OutputKind, RequestOutput, SamplingParams
from weft.text.tokenizer import tokenizer_in
from weft.vllm.client import VllmClient
from weft.vllm.convert.settings import to_settings
from weft.vllm.launch import launch

PROMPT = {"prompt_token_ids": list(range(100, 140))}
FINAL = {"temperature": 0.0, "ignore_eos": True, "output_kind": OutputKind.FINAL_ONLY}
LONG = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


@asynccontextmanager
async def engine(
    checkpoint: Path, extra: dict[str, object] | None = None, **options: object
) -> AsyncIterator[VllmClient]:
    """A client of an engine in float32 ("auto" would round it), until the end of the block.

    `extra` are vLLM's own arguments, `options` ours.
    """
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(CACHE)}
    chosen = EngineOptions(**{"model": str(checkpoint), "dtype": "float32", **options})
    settings = to_settings(chosen, {"enforce_eager": True, **(extra or {})}, None)
    tokenizer = tokenizer_in(checkpoint)
    launched = await asyncio.to_thread(launch, settings, tokenizer)
    client = await launched.connect(tokenizer)
    try:
        yield client
    finally:
        client.shutdown()
        await client.wait_closed()


async def final(
    client: VllmClient, params: SamplingParams, prompt: object = PROMPT, **options: object
) -> RequestOutput:
    """The last output."""
    async with aclosing(client.generate(prompt, params, "r", **options)) as outputs:
        return [output async for output in outputs][-1]


def cores() -> list[psutil.Process]:
    """The processes of the engine that is up, one a rank."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "EngineCore" in process.name()]
