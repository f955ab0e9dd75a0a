"""Growing pauses between retries, and `keep`, which starts again what has ended."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from weft.core.errors import WeftError


class Pauses:
    """Each pause is twice as long as the one before, up to `longest_s`; after a steady run, the first pause is
    next again.
    """

    def __init__(
        self, first_s: float = 0.5, longest_s: float = 60.0, steady_s: float = 60.0
    ) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s

    def next_s(self) -> float:
        """Returns the length of the next pause in seconds."""
        due_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return due_s

    def lasted(self, ran_s: float) -> bool:
        """True if an attempt ran longer than `steady_s` before it failed; the pauses then start from the first
        again.
        """
        is_steady = ran_s > self._steady_s
        if is_steady:
            self._next_s = self._first_s
        return is_steady


async def keep(
    what: str,
    run: Callable[[], Awaitable[str | None]],
    start: Callable[[], Awaitable[None]] | None,
    log: logging.Logger,
    *,
    pauses: Pauses | None = None,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> None:
    """Runs something, and starts it again after growing pauses whenever it has ended.

    `run` returns why it has ended; None ends this function too. Without `start`, `run` starts it too. A `start` that
    fails is tried again; an error outside `WeftError` is a defect, so it is logged with its traceback.
    """
    pauses = pauses or Pauses()
    while True:
        began_at = time.monotonic()
        why = await run()
        if why is None:
            return
        pauses.lasted(time.monotonic() - began_at)
        is_running = False
        while not is_running:
            pause_s = pauses.next_s()
            when = f", and is started again in {pause_s:.3g} s" if pause_s else ""
            log.warning("%s %s%s", what, why, when)
            await sleep(pause_s)
            try:
                if start is not None:
                    await start()
                is_running = True
            except Exception as error:
                is_foreseen = isinstance(error, WeftError)
                log.warning("%s could not be started: %s", what, error, exc_info=not is_foreseen)
