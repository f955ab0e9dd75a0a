"""Growing pauses between retries, and `keep`, which restarts a task whenever it ends."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from weft.core.errors import WeftError


class Pauses:
    """Lengths of the pauses between retries: each is twice the previous one, up to `longest_s`.

    After an attempt that ran longer than `steady_s` seconds, the next pause is `first_s` again. There are at most
    `most` pauses without such an attempt in between; None is no limit.
    """

    def __init__(
        self,
        first_s: float = 0.5,
        longest_s: float = 60.0,
        steady_s: float = 60.0,
        most: int | None = None,
    ) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s
        self._most = most
        self._num_taken = 0

    @property
    def is_spent(self) -> bool:
        """True if there is no further pause before the next steady run."""
        return self._most is not None and self._num_taken >= self._most

    def end(self) -> None:
        """Allows no further pause."""
        self._most = 0

    def next_s(self) -> float:
        """Returns the length of the next pause in seconds."""
        self._num_taken += 1
        due_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return due_s

    def lasted(self, ran_s: float) -> bool:
        """True if an attempt ran longer than `steady_s` seconds before it failed; this also resets the pauses to
        `first_s`.
        """
        is_steady = ran_s > self._steady_s
        if is_steady:
            self._next_s, self._num_taken = self._first_s, 0
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
    """Runs `run`, and starts it again after growing pauses whenever it ends.

    `run` returns the reason why it ended; if it returns None, this function returns too. `start`, if given, is called
    before each further run, and retried if it fails. An error that is no `WeftError` is a defect, so it is logged with
    its traceback. This function also returns when the pauses are spent.
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
            if pauses.is_spent:
                log.error("%s %s, and is not started again", what, why)
                return
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
