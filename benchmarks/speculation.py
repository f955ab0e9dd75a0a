"""When drafting from earlier text pays: `python benchmarks/speculation.py`.

The same prompts with and without `--speculative-config`, in turns. Each token of an answer is drawn
evenly from so many allowed ones, so that drafts are right about as often as one in that many: from
text that copies its prompt to text that is never repeated, for which nothing is drafted at all.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing

from weft.core.config import EngineOptions
from weft.core.types import OutputKind, SamplingParams
from weft.engine.fit import fit
from weft.engine.front.local_client import LocalClient
from weft.model.open import open_model

MODEL = (
    "embedded:random?layers=12&hidden=576&heads=9&kv_heads=3&head_dim=64&intermediate=1536"
    "&vocab=16384&dtype=bfloat16"
)
BATCHES = (1, 4, 16, 32)
ALLOWED = (1, 2, 4, 16, None)
PROMPT_TOKENS, MAX_TOKENS = 64, 64


async def start(model: str, num_drafted: int) -> LocalClient:
    """An engine that drafts so many tokens, or none."""
    wish = {"method": "ngram", "num_speculative_tokens": num_drafted} if num_drafted else None
    options = EngineOptions(model=model, max_model_len=1024, speculative_config=wish)
    fitted = fit(open_model(model), options)
    return await LocalClient.start(fitted.checkpoint, fitted.config)


async def rate(
    client: LocalClient, prompts: Sequence[list[int]], allowed: list[int] | None
) -> float:
    """Tokens a second over all prompts at once."""
    params = SamplingParams(
        temperature=2.0,
        allowed_token_ids=allowed,
        seed=1,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        output_kind=OutputKind.FINAL_ONLY,
    )

    async def one(number: int, prompt: list[int]) -> None:
        async with aclosing(client.generate(prompt, params, str(number))) as outputs:
            async for _ in outputs:
                pass

    started = time.perf_counter()
    await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    return len(prompts) * MAX_TOKENS / (time.perf_counter() - started)


async def measure(model: str, num_drafted: int, repetitions: int) -> None:
    """Print a row for each kind of answer and each batch."""
    plain, drafting = await start(model, 0), await start(model, num_drafted)
    vocab_size = plain.model_config.vocab_size
    print(f"{model}, {num_drafted} tokens drafted, {repetitions} repetitions in turns\n")
    print("| answers | at once | without, tok/s | with, tok/s | ratio | drafts that came |")
    print("|---|---|---|---|---|---|")
    for num_allowed in ALLOWED:
        allowed = None if num_allowed is None else list(range(100, 100 + num_allowed))
        name = "any token" if num_allowed is None else f"of {num_allowed} tokens"
        for batch in BATCHES:
            before = (await drafting.get_loads())[0]
            rates: list[tuple[float, float]] = []
            for repetition in range(repetitions + 1):  # the first warms up
                draw = random.Random(f"{name} {batch} {repetition}")
                prompts = [
                    [draw.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)
                ]
                rates.append(
                    (
                        await rate(plain, prompts, allowed),
                        await rate(drafting, prompts, allowed),
                    )
                )
            after = (await drafting.get_loads())[0]
            drafted = after.num_draft_tokens - before.num_draft_tokens
            accepted = after.num_accepted_tokens - before.num_accepted_tokens
            without, with_drafts = (
                statistics.median(side) for side in zip(*rates[1:], strict=True)
            )
            ratio = statistics.median(b / a for a, b in rates[1:])
            share = f"{100 * accepted / drafted:.0f} %" if drafted else "none drafted"
            row = (name, batch, f"{without:.0f}", f"{with_drafts:.0f}", f"{ratio:.2f}", share)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    for client in (plain, drafting):
        client.shutdown()
        await client.wait_closed()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--drafted", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.model, arguments.drafted, arguments.repetitions))


if __name__ == "__main__":
    main()
