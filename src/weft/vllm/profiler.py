"""Runs vLLM's profiler of this process on a separate thread."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any


class OneThread:
    """Runs vLLM's profiler calls on a thread of its own, whichever thread they come from.

    With stacks, torch's profiler writes through freed memory where it is stopped on another thread than it was
    started on, which ends the process.
    """

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler
        self._thread = ThreadPoolExecutor(1, "profiler")

    def set_output_name(self, worker_name: str) -> None:
        """Names the next trace's file."""
        self._profiler.set_output_name(worker_name)

    def start(self) -> None:
        """Begin a trace."""
        self._thread.submit(self._profiler.start).result()

    def stop(self) -> None:
        """Stops the profiler, and writes the profile."""
        self._thread.submit(self._profiler.stop).result()
