"""An event loop whose time passes as fast as there is nothing left to do at the moment it shows."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeftError(RuntimeError):
    """Everybody waits for something that no timer will bring."""


class _NoWaiting(selectors.SelectSelector):
    """Has no news ever; being asked to wait for some moves the clock instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeftError("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks and timers in the order of a real loop. Files, sockets and threads are not for it."""

    def __init__(self) -> None:
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        """Seconds since it was made, as far as those on it are concerned."""
        return self._no_waiting.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
