"""An engine inside a program that has an event loop: no server, several requests at once.

With --engines 2 there are two of them, each in a process, and each request names the one that computes it.

python examples/engine.py
"""

import argparse
import asyncio

from weft import AsyncLLM, SamplingParams
from weft.core.values.types import OutputKind

PROMPTS = ["The capital of France is", "The capital of Italy is", "Two and two is"]


async def main(num_engines: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, output_kind=OutputKind.FINAL_ONLY)
    async with AsyncLLM("embedded:tiny", max_num_seqs=8, data_parallel_size=num_engines) as engine:

        async def answer(number: int, prompt: str) -> None:
            # With OutputKind.DELTA each output has what is new.
            rank = number % num_engines if num_engines > 1 else None
            outputs = engine.generate(prompt, params, f"request-{number}", data_parallel_rank=rank)
            async for output in outputs:
                print(f"{prompt}{output.outputs[0].text}")

        await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(PROMPTS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=1)
    asyncio.run(main(parser.parse_args().engines))
