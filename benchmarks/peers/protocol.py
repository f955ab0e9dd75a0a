"""How the comparison talks to an engine in another environment: a line of JSON each way.

Only the standard library: this runs in every peer's environment.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TextIO

# Yields the number of new tokens each time that some have come.
Generate = Callable[[list[int], int], AsyncIterator[int]]
# All prompts at once: what is reported of them.
Run = Callable[[list[list[int]], int], Awaitable[dict[str, Any]]]


def claim_stdout() -> TextIO:
    """The pipe to the comparison; whatever libraries print goes to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return pipe


async def serve(pipe: TextIO, run: Run, about: dict[str, Any]) -> None:
    """Answer requests until stdin closes. `about` says what this engine is."""
    print(json.dumps(about), file=pipe)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        print(json.dumps(await run(asked["prompts"], asked["max_tokens"])), file=pipe)


def streaming(generate: Generate) -> Run:
    """Ask for all prompts at the same time, each with a stream of its own."""

    async def run(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        started = time.perf_counter()

        async def one(prompt: list[int]) -> tuple[float, int]:
            first, num_tokens = 0.0, 0
            async for num_new in generate(prompt, max_tokens):
                first = first or time.perf_counter() - started
                num_tokens += num_new
            return first, num_tokens

        answers = await asyncio.gather(*map(one, prompts))
        return report(started, [first for first, _ in answers], sum(n for _, n in answers))

    return run


def report(started: float, first_s: list[float], num_tokens: int) -> dict[str, Any]:
    """Seconds to each prompt's first token and to the end of all, and the tokens that came."""
    total_s = time.perf_counter() - started
    return {"first_s": first_s, "total_s": total_s, "num_tokens": num_tokens}
