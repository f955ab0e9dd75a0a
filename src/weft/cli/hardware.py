"""CPU, memory and their limits on this machine, and problems that slow Weft down."""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.compute.memory import free_memory_bytes
from weft.compute.native import Cpu, cpu, usable_paths
from weft.core.observe.readable import format_bytes

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_LITTLE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check. `mend` is a command that fixes the problem; None if there is no problem."""

    area: str
    found: str
    mend: str | None = None


def check_cpu(
    root: Path, usable: Cpu | None = None, paths: list[str] | None = None
) -> Iterator[Check]:
    """Checks the instruction path that computes the steps and, on x86, whether the kernel permits this process to use
    the CPU's AMX tiles.
    """
    usable, paths = usable or cpu(), paths or usable_paths()
    path = paths[0]
    yield Check(
        area="CPU",
        found=f"{usable.describe()}; computed with {path}",
        mend="weft serve --compute reference  # or use a CPU with AVX2 or NEON: this CPU has no fast path"
        if path == "portable"
        else None,
    )
    if usable.architecture != "x86-64":
        return
    has_tiles = re.search(r"^flags\s*:.*\bamx_tile\b", _read(root / "proc/cpuinfo"), re.MULTILINE)
    if has_tiles is None:
        yield Check(area="AMX", found="the CPU has no AMX")
    elif "amx_tile" in usable.features:
        yield Check(area="AMX", found="permitted")
    else:
        yield Check(
            area="AMX",
            found="the CPU has AMX, but the system refuses it to this process: arch_prctl(ARCH_REQ_XCOMP_PERM) failed",
            mend="docker run --security-opt seccomp=unconfined ...  # or allow arch_prctl in its profile (Linux 5.16)",
        )


def check_huge_pages(root: Path) -> Check:
    """Checks that the kernel gives huge pages to programs that request them: weights and KV use huge pages."""
    text = _read(root / _HUGE_PAGES)
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        return Check(
            area="huge pages", found="this system does not report its setting of huge pages"
        )
    mend = None
    if chosen[1] == "never":
        mend = f"echo madvise | sudo tee /{_HUGE_PAGES}"
    return Check(area="huge pages", found=f"transparent huge pages: {chosen[1]}", mend=mend)


def check_memory(root: Path, free_bytes: int | None = None) -> Check:
    """Checks the free memory of the machine and of the process's control group: less than 1 GiB is a problem."""
    free = free_memory_bytes(root) if free_bytes is None else free_bytes
    mend = None
    if free < _LITTLE_BYTES:
        mend = "docker run --memory 4g ...  # or end programs that use much memory: ps aux --sort -rss | head"
    return Check(area="memory", found=f"{format_bytes(free)} free, within all limits", mend=mend)


def check_cpu_quota(root: Path, num_cpus: int | None = None) -> Check:
    """Checks the CPU quota of the control group: under a quota that is not a whole number of CPUs, the kernel stops all
    threads for a part of each period.
    """
    num_cpus = len(_allowed_cpus(num_cpus))
    quota = _quota(root)
    if quota is None or quota >= num_cpus:
        return Check(area="CPUs", found=f"{num_cpus} for this process, no lower quota")
    threads = max(1, math.floor(quota))
    found = f"{num_cpus} for this process; its control group limits it to {quota:g} CPUs"
    if quota == threads:
        return Check(area="CPUs", found=found)
    return Check(
        area="CPUs",
        found=found,
        mend=f"weft serve --num-threads {threads}  # or a quota of whole CPUs: docker run --cpus {threads}",
    )


def check_numa(root: Path, num_cpus: int | None = None) -> Check:
    """Checks the number of NUMA nodes: a process on several nodes reads a part of the weights from another node's
    memory, which is slower.
    """
    nodes = {}
    for directory in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        cpus = _cpu_list(_read(directory / "cpulist")) & _allowed_cpus(num_cpus)
        if cpus:
            nodes[directory.name.removeprefix("node")] = cpus
    if len(nodes) <= 1:
        return Check(area="NUMA", found="one node" if nodes else "this system reports no nodes")
    most = max(nodes, key=lambda node: len(nodes[node]))
    return Check(
        area="NUMA",
        found=f"this process may run on {len(nodes)} nodes; memory of another node is slower",
        mend=f"numactl --cpunodebind={most} --membind={most} weft serve ...",
    )


def _allowed_cpus(num_cpus: int | None) -> set[int]:
    if num_cpus is not None:
        return set(range(num_cpus))
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _quota(root: Path) -> float | None:
    """Returns the number of CPUs that the strictest control group (version 1 or 2) of this process allows; None without
    a limit.
    """
    groups = root / "sys/fs/cgroup"
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = groups / "cpu" if controllers else groups
        inner = mount / path.strip("/")
        for group in (inner, *inner.parents):
            if not group.is_relative_to(mount):
                break
            words = _read(group / "cpu.max").split() or [
                _read(group / "cpu.cfs_quota_us").strip(),
                _read(group / "cpu.cfs_period_us").strip(),
            ]
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _cpu_list(text: str) -> set[int]:
    """Converts a list of CPU numbers in the kernel's format, such as "0-3,8", to a set."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
