"""Long work on the event loop, done a few milliseconds at a time."""

import asyncio
from typing import Final

_TURN_S: Final = 0.005


class Turns:
    """Made when the work begins, on the loop, whose clock it goes by: in virtual time no turn is over."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + _TURN_S

    async def yield_if_due(self) -> None:
        """Let everything else run that is ready, if this has taken its turn; to be called after each step."""
        if self._clock() > self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + _TURN_S
