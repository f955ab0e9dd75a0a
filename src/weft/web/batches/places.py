"""`Places`: how many requests of batches may run at once, so that they stay behind the requests of callers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from weft.web.http.state import ServerState

_LOOK_S = 0.02


class Places:
    """At most `most` places. Each open request of a caller takes one of them away, down to one."""

    def __init__(self, state: ServerState, most: int) -> None:
        self._state = state
        self._most = most
        self.num_taken = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for a place and holds it during the block."""
        while self.num_taken >= self.num_allowed:  # noqa: ASYNC110 - requests of callers end without an event
            await asyncio.sleep(_LOOK_S)
        self.num_taken += 1
        try:
            yield
        finally:
            self.num_taken -= 1

    @property
    def num_allowed(self) -> int:
        """The number of places now."""
        num_callers = self._state.num_open - self.num_taken
        return max(1, self._most - max(0, num_callers))
