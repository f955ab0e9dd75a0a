"""Long work on the event loop, done a few milliseconds at a time."""

import asyncio
import time
from typing import Final

_TURN_S: Final = 0.005


class Turns:
    """Made when the work begins."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _TURN_S

    async def yield_if_due(self) -> None:
        """Let everything else run that is ready, if this has taken its turn; to be called after each step."""
        if time.monotonic() > self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + _TURN_S
