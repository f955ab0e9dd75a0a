"""`LoopThread`: an event loop on a thread of its own, for programs that have none, or another one."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A running event loop. Methods may be called from any other thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._loop.is_closed()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine. Raises `RuntimeError` after `close`."""
        if self.is_closed:
            work.close()
            raise RuntimeError("the engine was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of a coroutine; an interrupt of the wait cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels all tasks, and ends the loop and its thread. Called once."""
        self.wait(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
