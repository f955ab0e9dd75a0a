"""A stream that also says when it is silent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def with_ticks(
    source: AsyncGenerator[T, None], interval_s: float
) -> AsyncGenerator[T | None, None]:
    """Yield what `source` yields, and None after every `interval_s` of silence. Owns `source`."""
    async with aclosing(source):
        while True:
            upcoming = asyncio.ensure_future(anext(source))
            try:
                while not (await asyncio.wait({upcoming}, timeout=interval_s))[0]:
                    yield None
            finally:
                # A generator that still runs cannot be closed: stop it, and wait until it has.
                upcoming.cancel()
                await asyncio.wait({upcoming})
            try:
                item = upcoming.result()
            except StopAsyncIteration:
                return
            yield item
