"""How the comparison talks to an engine in another environment: a line of JSON each way.

Only the standard library: this runs in every peer's environment.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TextIO

# Yields the number of new tokens each time that some have come.
Generate = Callable[[list[int], int], AsyncIterator[int]]
# All prompts at once: what is reported of them.
Answer = Callable[[list[list[int]], int], dict[str, Any]]


def claim_stdout() -> TextIO:
    """The pipe to the comparison; whatever libraries print goes to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return pipe


def serve(pipe: TextIO, answer: Answer, engine: str, version: str) -> None:
    """Answer requests until stdin closes."""
    print(json.dumps({"engine": engine, "version": version}), file=pipe)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(asked["prompts"], asked["max_tokens"])), file=pipe)


async def serve_streams(pipe: TextIO, generate: Generate, engine: str, version: str) -> None:
    """The same of an engine on this event loop: asked for all prompts at once, each with a stream of its own."""
    loop = asyncio.get_running_loop()

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

    def answer(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        return asyncio.run_coroutine_threadsafe(run(prompts, max_tokens), loop).result()

    await asyncio.to_thread(serve, pipe, answer, engine, version)


def report(started: float, first_s: list[float], num_tokens: int) -> dict[str, Any]:
    """Seconds to each prompt's first token and to the end of all, and the tokens that came."""
    total_s = time.perf_counter() - started
    return {"first_s": first_s, "total_s": total_s, "num_tokens": num_tokens}
