"""Signals that end a command with servers: SIGINT and SIGTERM. They are queued and handled one after the other."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Signalled(Exception):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


class Signals:
    """Queue of the signals that have arrived and are not yet handled."""

    def __init__(self) -> None:
        self._numbers: asyncio.Queue[int] = asyncio.Queue()

    def listen(self) -> None:
        """Installs handlers on this event loop that only add each signal to the queue."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.put, number)

    def put(self, number: int) -> None:
        """Adds a signal to the queue."""
        self._numbers.put_nowait(number)

    async def take(self) -> Signalled:
        """Waits for the next signal and removes it from the queue."""
        return Signalled(await self._numbers.get())

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. If a signal arrives first, cancels the work and raises `Signalled`."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self.take())
        try:
            await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise signalled.result()
        finally:
            for pending in (task, signalled):
                pending.cancel()
            await asyncio.gather(task, signalled, return_exceptions=True)
