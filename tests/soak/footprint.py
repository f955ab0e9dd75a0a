"""What a process costs its machine: descriptors, threads and memory."""

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Footprint:
    """One process, now."""

    num_fds: int
    num_threads: int
    rss_bytes: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Footprint":
        """Read from the system."""
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)
