"""An engine inside a program that has an event loop: no server, several requests at once.

python examples/engine.py
"""

import asyncio

from weft import AsyncLLM, SamplingParams
from weft.core.types import OutputKind

PROMPTS = ["The capital of France is", "The capital of Italy is", "Two and two is"]


async def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, output_kind=OutputKind.FINAL_ONLY)
    async with AsyncLLM("embedded:tiny", max_num_seqs=8) as engine:

        async def answer(number: int, prompt: str) -> None:
            # With OutputKind.DELTA each output has what is new.
            async for output in engine.generate(prompt, params, f"request-{number}"):
                print(f"{prompt}{output.outputs[0].text}")

        await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(PROMPTS)))


if __name__ == "__main__":
    asyncio.run(main())
