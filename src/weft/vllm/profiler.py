"""Runs vLLM's profiler of this process on one separate thread."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any


class OneThread:
    """A profiler that runs all calls of vLLM's profiler on one thread of its own.

    torch's profiler must be stopped on the thread that started it. Otherwise, when it records stacks, it writes to
    freed memory, and the process crashes.
    """

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler
        self._thread = ThreadPoolExecutor(1, "profiler")

    def set_output_name(self, worker_name: str) -> None:
        """Sets the name of the next trace file."""
        self._profiler.set_output_name(worker_name)

    def start(self) -> None:
        """Starts the profiler."""
        self._thread.submit(self._profiler.start).result()

    def stop(self) -> None:
        """Stops the profiler and writes the trace."""
        self._thread.submit(self._profiler.stop).result()
