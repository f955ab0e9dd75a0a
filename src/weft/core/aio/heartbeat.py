"""`Heartbeat`: detects that another process no longer answers."""

import asyncio
import math
from collections.abc import Awaitable, Callable

PERIOD_S = 2.0  # between two beats


class Heartbeat:
    """Detects a silent process by counting unanswered beats, not seconds: time for which this process itself was
    suspended does not count. A starting process gets `start_s` more seconds until its first answer.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        timeout_s: float,
        *,
        start_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._beat = beat
        self._sleep = sleep
        self._max_unanswered = math.ceil(timeout_s / PERIOD_S)
        self._num_unanswered = -math.ceil(start_s / PERIOD_S)

    def answered(self) -> None:
        """Records an answer of the other process."""
        self._num_unanswered = 0

    async def silence(self) -> None:
        """Returns as soon as the other process has not answered for `timeout_s` seconds."""
        while self._num_unanswered < self._max_unanswered:
            self._beat()
            self._num_unanswered += 1
            await self._sleep(PERIOD_S)
