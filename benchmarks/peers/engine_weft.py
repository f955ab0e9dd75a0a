"""Weft as one of the engines: the engine in its own process, as `weft serve` runs it."""

import argparse
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing

import uvloop
from protocol import claim_stdout, serve_streams
from workloads import LONGEST

from weft import __version__
from weft.core.config.engine_options import EngineOptions
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.clients.process_client import ProcessClient
from weft.engine.start.fit import fit
from weft.model.open import open_model

# What the workloads of one round need, so that the round that is thrown away writes all of it: an engine
# that has served for a while does not wait for the kernel to clear its KV memory, nor do peers, who write
# theirs at the start.
KV_TOKENS = 20480
BLOCK_SIZE = 16


async def main() -> None:
    """Load, then answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--max-num-batched-tokens", choices=("auto",))
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    pipe = claim_stdout()
    options = EngineOptions(
        max_model_len=LONGEST,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=KV_TOKENS // BLOCK_SIZE,
        **given,
    )
    checkpoint = open_model(options.model)
    fitted = fit(checkpoint, options)
    client = await ProcessClient.start(fitted.checkpoint, fitted.config)
    ids = map(str, itertools.count())

    async def generate(prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=OutputKind.DELTA
        )
        async with aclosing(client.generate(prompt, params, next(ids))) as outputs:
            async for output in outputs:
                yield sum(len(answer.token_ids) for answer in output.outputs)

    try:
        await serve_streams(pipe, generate, "weft", __version__)
    finally:
        client.shutdown()
        await client.wait_closed()


if __name__ == "__main__":
    uvloop.run(main())  # as its server does
