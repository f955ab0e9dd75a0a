"""Splits long work on the event loop into pieces of a few milliseconds."""

import asyncio
from typing import Final

_TURN_S: Final = 0.005


class Turns:
    """Time slice of a task on the event loop: after 5 ms the task lets other tasks run.

    The event loop's clock measures the slice, so in tests with virtual time no slice ends.
    """

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + _TURN_S

    async def yield_if_due(self) -> None:
        """Lets other tasks run if this task's time slice has ended.

        The task calls this method after each step of its work.
        """
        if self._clock() > self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + _TURN_S
