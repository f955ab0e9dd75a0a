"""`Heartbeat`: detects that another process does not answer any more."""

import asyncio
import math
from collections.abc import Awaitable, Callable

PERIOD_S = 2.0  # between two beats


class Heartbeat:
    """Counts unanswered beats instead of seconds, so that time in which this process itself was stopped does not
    count.

    A starting process gets `start_s` more until its first answer.
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
        """Returns when the other process has not answered for `timeout_s`."""
        while self._num_unanswered < self._max_unanswered:
            self._beat()
            self._num_unanswered += 1
            await self._sleep(PERIOD_S)
