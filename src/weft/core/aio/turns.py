"""Long work on the event loop, done a few milliseconds at a time."""

import asyncio
from typing import Final

_TURN_S: Final = 0.005


class Turns:
    """The turn of a task on the event loop, by the loop's clock: in virtual time no turn ends."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + _TURN_S

    async def yield_if_due(self) -> None:
        """Lets other tasks run if this task's turn has ended; called after each step of the work."""
        if self._clock() > self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + _TURN_S
