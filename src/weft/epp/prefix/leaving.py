"""Removes the blocks of endpoints that left the pool, a few milliseconds at a time: an endpoint may have a million
blocks.
"""

import asyncio
from collections.abc import Callable

from weft.core.aio.turns import Turns
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool


class Leaving:
    """Clears an index of each endpoint that leaves the pool. The endpoint's slot stays reserved until then."""

    def __init__(self, pool: Pool, clear_some: Callable[[Endpoint], bool]) -> None:
        self._pool = pool
        self._clear_some = clear_some  # clears a part; returns False if nothing was left
        self._tasks: set[asyncio.Task[None]] = set()
        pool.on_left(self._left)

    async def aclose(self) -> None:
        """Ends the running tasks when the picker closes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, endpoint: Endpoint) -> None:
        if not (self._clear_some(endpoint) and self._clear_some(endpoint)):
            return  # usually, the first part was everything
        self._pool.hold_slot(endpoint)
        task = asyncio.create_task(self._clear(endpoint), name=f"clear {endpoint.host_port}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _clear(self, endpoint: Endpoint) -> None:
        turns = Turns()
        while self._clear_some(endpoint):
            await turns.yield_if_due()
        self._pool.release_slot(endpoint)
