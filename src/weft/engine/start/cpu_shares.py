"""Divides the CPUs of a machine among several engines: whole cores, if possible of one NUMA node."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import local_ranks

_THREADS = Path("/proc/self/task")
_SYSTEM = Path("/sys/devices/system")


def keep_to_own_cpus(config: EngineConfig) -> None:
    """Pins this process and its future threads to the CPUs of its rank. No effect for a single engine."""
    if config.data_parallel_rank is not None:
        keep_to(cpus_of(config))


def cpus_of(config: EngineConfig) -> list[int]:
    """Returns a rank's part of this process's CPUs; empty if the system does not list CPUs."""
    assert config.data_parallel_rank is not None
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = in_order(os.sched_getaffinity(0))
    ranks = local_ranks(config)
    return share(cpus, ranks.index(config.data_parallel_rank), len(ranks))


def keep_to(cpus: list[int]) -> None:
    """Pins all threads of this process to these CPUs."""
    if not cpus:
        return
    for thread in _THREADS.iterdir():
        with suppress(ProcessLookupError):  # the thread has ended since it was listed
            os.sched_setaffinity(int(thread.name), cpus)


def share(cpus: list[int], rank: int, size: int) -> list[int]:
    """Returns the CPUs of one rank out of `size`; if there are fewer CPUs than ranks, several ranks use the same
    CPU.
    """
    own = cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size]
    return own or [cpus[rank * len(cpus) // size]]


def in_order(cpus: Iterable[int], system: Path = _SYSTEM) -> list[int]:
    """Sorts CPUs so that the CPUs of a NUMA node, of a socket and of a core are adjacent."""
    return sorted(cpus, key=lambda cpu: (*_place(system / "cpu" / f"cpu{cpu}"), cpu))


def _place(cpu: Path) -> tuple[int, int, int]:
    """Returns NUMA node, socket and core of a CPU; 0 for values that the system does not report."""
    nodes = [int(found.name[4:]) for found in cpu.glob("node[0-9]*")]
    return (
        min(nodes, default=0),
        _number(cpu / "topology/physical_package_id"),
        _number(cpu / "topology/core_id"),
    )


def _number(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
