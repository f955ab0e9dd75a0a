"""Which CPUs each of several engines computes on: whole cores, and of one NUMA node where that can be."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from weft.core.config import EngineConfig
from weft.core.ranks import local_ranks

_THREADS = Path("/proc/self/task")
_SYSTEM = Path("/sys/devices/system")


def keep_to_own_cpus(config: EngineConfig) -> None:
    """Keep this process, and the threads that it starts, to the CPUs of its rank; alone, to none."""
    if config.data_parallel_rank is not None:
        keep_to(cpus_of(config))


def cpus_of(config: EngineConfig) -> list[int]:
    """The share of a rank in the CPUs of this process; none where the system does not say which they are."""
    assert config.data_parallel_rank is not None
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = in_order(os.sched_getaffinity(0))
    ranks = local_ranks(config)
    return share(cpus, ranks.index(config.data_parallel_rank), len(ranks))


def keep_to(cpus: list[int]) -> None:
    """Keep this process to these CPUs, with all threads that it has."""
    if not cpus:
        return
    for thread in _THREADS.iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cpus)


def share(cpus: list[int], rank: int, size: int) -> list[int]:
    """The CPUs of a rank; where they are fewer than ranks, some have the same one."""
    own = cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size]
    return own or [cpus[rank * len(cpus) // size]]


def in_order(cpus: Iterable[int], system: Path = _SYSTEM) -> list[int]:
    """Those that share a core side by side, and then those of a NUMA node."""
    return sorted(cpus, key=lambda cpu: (*_place(system / "cpu" / f"cpu{cpu}"), cpu))


def _place(cpu: Path) -> tuple[int, int, int]:
    """NUMA node, socket and core; 0 for what the system does not report."""
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
