"""Reads, writes and frees many log-probabilities without blocking the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.core.values.types import PositionLogprobs, RequestOutput

# Number of logprobs whose reading or writing takes 2 to 4 ms.
MANY_SCORES = 2048
T = TypeVar("T")


async def write_scores(num_scores: int, write: Callable[[], T]) -> T:
    """Returns the result of `write`; for many logprobs it runs on a thread, so that the event loop stays responsive."""
    return write() if num_scores <= MANY_SCORES else await asyncio.to_thread(write)


async def let_go(*scored: Sequence[PositionLogprobs | None] | None) -> None:
    """Frees logprobs that were written, in pieces with turns for other tasks: freeing a million takes 0.1 s."""
    for rows in scored:
        while isinstance(rows, list) and rows:
            del rows[-max(1, MANY_SCORES // max(1, len(rows[-1] or ()))) :]
            await asyncio.sleep(0)


async def let_go_of(output: RequestOutput) -> None:
    await let_go(output.prompt_logprobs, *(answer.logprobs for answer in output.outputs))
