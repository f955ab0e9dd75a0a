"""`PeerThreads`: threads that wait for other engines, divided among the engines so that none occupies all threads."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


class PeerThreads:
    """A thread pool whose threads are divided among peers.

    A peer gets another thread if more threads are free than the peer has: so a slow peer leaves half of them to others.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        # Starts one thread, which does all work if there is no memory for others later.
        self._executor.submit(int)
        self._lock = threading.Lock()  # guards the attributes below
        self._num_free = num_threads
        self._num_running: Counter[tuple[str, int]] = Counter()
        self._waiting: dict[tuple[str, int], deque[Callable[[], None]]] = {}
        self._is_closed = False

    def submit(self, address: tuple[str, int], work: Callable[[], None]) -> None:
        """Runs `work` on a thread when one is free for the peer at this address, in order; no effect after `close`."""
        with self._lock:
            if not self._is_closed:
                self._waiting.setdefault(address, deque()).append(work)
                self._start()

    def close(self) -> None:
        """Stops starting work; running work continues."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        for address in list(self._waiting):
            works = self._waiting[address]
            while works and self._num_running[address] < self._num_free:
                self._num_running[address] += 1
                self._num_free -= 1
                with suppress(RuntimeError):  # no memory for another thread: the work is queued
                    self._executor.submit(self._run, address, works.popleft())
            if not works:
                del self._waiting[address]

    def _run(self, address: tuple[str, int], work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._num_free += 1
                self._num_running[address] -= 1
                if not self._num_running[address]:
                    del self._num_running[address]
                if not self._is_closed:
                    self._start()
