"""When drafting pays: `python benchmarks/speculation.py`, and with `--draft MODEL` for drafts by a model.

The same prompts with and without `--speculative-config`, in turns; with drafts always, and while that pays, as it is
served. Each token of an answer is drawn evenly from so many allowed ones, so that drafts are right about as often as
one in that many where they are looked up, and oftener by a model, which draws with the same noise.

`--costs` times the forward passes alone, of the model and of the draft: how many tokens a sequence must get of a step
for its drafts to pay. `--agreement` says how many drafts
come true of the embedded model's own copies in fewer bits.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from unittest.mock import patch

import numpy as np

from weft.compute.backends import load_model
from weft.compute.protocols.runner import Batch, Runner
from weft.core.config.engine_options import EngineOptions
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.fit import find_and_fit
from weft.engine.weights.draft_model import DraftModel

MODEL = (
    "embedded:random?layers=12&hidden=576&heads=9&kv_heads=3&head_dim=64&intermediate=1536"
    "&vocab=16384&dtype=bfloat16"
)
BATCHES = (1, 4, 16, 32)
ALLOWED = (1, 2, 4, 16, None)
PROMPT_TOKENS, MAX_TOKENS = 64, 96
TALK = ("Hello! Who are you?", "Tell me about the sea.", "What is the capital of France?")


async def start(model: str, wish: dict[str, Any] | None, *, is_always: bool = False) -> LocalClient:
    """An engine that drafts so, or not at all; `is_always`, whether it pays or not."""
    options = EngineOptions(model=model, max_model_len=1024, speculative_config=wish)
    fitted = find_and_fit(options).with_tokenizer()
    if not is_always:
        return await LocalClient.start(fitted.checkpoint, fitted.config)
    with patch("weft.engine.loop.DraftPayoff", return_value=None):
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


async def measure(
    model: str, wish: dict[str, Any], repetitions: int, batches: Sequence[int]
) -> None:
    """Print a row for each kind of answer and each batch."""
    engines = [
        await start(model, None),
        await start(model, wish, is_always=True),
        await start(model, wish),
    ]
    always = engines[1]
    vocab_size = always.model_config.vocab_size
    print(f"{model}, {wish}, {repetitions} repetitions in turns\n")
    print(
        "| answers | at once | without, tok/s | always | ratio | while it pays | drafts that came |"
    )
    print("|---|---|---|---|---|---|---|")
    for num_allowed in ALLOWED:
        allowed = None if num_allowed is None else list(range(100, 100 + num_allowed))
        name = "any token" if num_allowed is None else f"of {num_allowed} tokens"
        for batch in batches:
            before = (await always.get_loads())[0]
            rates: list[list[float]] = []
            for repetition in range(repetitions + 1):  # the first warms up
                draw = random.Random(f"{name} {batch} {repetition}")
                prompts = [
                    [draw.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)
                ]
                rates.append([await rate(client, prompts, allowed) for client in engines])
            after = (await always.get_loads())[0]
            drafted = after.num_draft_tokens - before.num_draft_tokens
            accepted = after.num_accepted_tokens - before.num_accepted_tokens
            median = [statistics.median(side) for side in zip(*rates[1:], strict=True)]
            ratios = [statistics.median(turn[i] / turn[0] for turn in rates[1:]) for i in (1, 2)]
            share = f"{100 * accepted / drafted:.0f} %" if drafted else "none drafted"
            row = (name, batch, f"{median[0]:.0f}", f"{median[1]:.0f}", f"{ratios[0]:.2f}")
            print("| " + " | ".join(map(str, (*row, f"{ratios[1]:.2f}", share))) + " |", flush=True)
    for client in engines:
        client.shutdown()
        await client.wait_closed()


def time_costs(model: str, wish: dict[str, Any], repetitions: int, batches: Sequence[int]) -> None:
    """Print what a step takes without drafts and with them, and what they take."""
    options = EngineOptions(model=model, max_model_len=1024, speculative_config=wish)
    fitted = find_and_fit(options)
    draft = DraftModel.load(fitted.config)
    assert draft is not None
    num_drafted = wish["num_speculative_tokens"]
    target = load_model(fitted.checkpoint, fitted.config)[0]
    target.allocate_kv(num_blocks=8 * max(batches), block_size=16)
    draft.allocate_kv(num_blocks=8 * max(batches), block_size=16)
    print(f"{model}, {wish}, median of {repetitions} in turns\n")
    print(
        f"| at once | a row each, ms | {1 + num_drafted} rows each | {num_drafted} drafts | pays from |"
    )
    print("|---|---|---|---|---|")
    for batch in batches:
        turns = []
        for _ in range(repetitions + 1):  # the first warms up
            assert draft.runner is not None
            drafting = sum(seconds(draft.runner, batch, 1) for _ in range(num_drafted))
            wide = seconds(target, batch, 1 + num_drafted)
            turns.append((seconds(target, batch, 1), wide, drafting))
        plain, wide, drafting = (statistics.median(side) for side in zip(*turns[1:], strict=True))
        needed = statistics.median((b + c) / a for a, b, c in turns[1:])
        times = (f"{1000 * one:.2f}" for one in (plain, wide, drafting))
        print(
            "| " + " | ".join([str(batch), *times, f"{needed:.2f} tokens a step"]) + " |",
            flush=True,
        )


def seconds(runner: Runner, num_sequences: int, num_rows: int) -> float:
    """Of a forward pass for so many sequences of 100 tokens, of so many rows each."""
    num_all = num_sequences * num_rows
    places = np.tile(np.arange(100, 100 + num_rows, dtype=np.int32), num_sequences)
    tables = np.arange(8 * num_sequences, dtype=np.int32).reshape(num_sequences, 8)
    owners = np.repeat(np.arange(num_sequences), num_rows)
    batch = Batch(
        token_ids=np.arange(num_all, dtype=np.int32),
        positions=places,
        slots=tables[owners, places // 16] * np.int32(16) + places % 16,
        query_starts=np.arange(0, num_all + 1, num_rows, dtype=np.int32),
        prompt_lens=np.full(num_sequences, 64, np.int32),
        block_tables=tables,
        logit_rows=np.arange(num_all, dtype=np.int32),
    )
    started = time.perf_counter()
    runner.forward(batch)
    return time.perf_counter() - started


async def agree() -> None:
    """Print how many drafts come true of copies of the embedded model in fewer bits."""
    print("| the draft's bits | temperature | drafts that came |")
    print("|---|---|---|")
    for quantization in ("int8", "int4"):
        for temperature in (0.0, 0.7, 1.0):
            wish = {
                "model": "embedded:tiny",
                "num_speculative_tokens": 4,
                "quantization": quantization,
            }
            client = await start("embedded:tiny", wish, is_always=True)
            params = SamplingParams(
                temperature=temperature, max_tokens=200, seed=1, ignore_eos=True
            )
            for number, text in enumerate(TALK):
                async with aclosing(client.generate(text, params, str(number))) as outputs:
                    async for _ in outputs:
                        pass
            [load] = await client.get_loads()
            share = load.num_accepted_tokens / load.num_draft_tokens
            print(f"| {quantization} | {temperature:g} | {100 * share:.0f} % |", flush=True)
            client.shutdown()
            await client.wait_closed()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--draft", help="a model that drafts; without one, earlier text is looked up"
    )
    parser.add_argument("--quantization", help="of the draft's linear layers")
    parser.add_argument("--drafted", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--agreement", action="store_true")
    arguments = parser.parse_args()
    if arguments.agreement:
        asyncio.run(agree())
        return
    wish: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": arguments.drafted}
    if arguments.draft is not None:
        wish = {"model": arguments.draft, "num_speculative_tokens": arguments.drafted}
        if arguments.quantization is not None:
            wish["quantization"] = arguments.quantization
    if arguments.costs:
        time_costs(arguments.model, wish, arguments.repetitions, arguments.batches)
        return
    asyncio.run(measure(arguments.model, wish, arguments.repetitions, arguments.batches))


if __name__ == "__main__":
    main()
