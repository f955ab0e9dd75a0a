"""Free memory of this process, as the kernel and its control group report it."""

import os
from pathlib import Path

_UNLIMITED = 1 << 60  # control groups of version 1 write a huge number for "no limit"


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the smaller of the machine's available memory and the memory left in this process's control group.

    Returns the machine's whole memory if neither can be read (systems other than Linux).
    """
    candidates = [_machine_bytes(root / "proc/meminfo"), _group_bytes(root)]
    known = [value for value in candidates if value is not None]
    if known:
        return max(0, min(known))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _machine_bytes(meminfo: Path) -> int | None:
    for line in (_read(meminfo) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _group_bytes(root: Path) -> int | None:
    """Returns limit minus usage of the control group, among those that contain this process, with the least memory
    left.
    """
    groups = root / "sys/fs/cgroup"
    left = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            left += _group_lineage(groups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            left += _group_lineage(
                groups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"
            )
    return min(left, default=None)


def _group_lineage(mount: Path, path: str, limit_name: str, used_name: str) -> list[int]:
    """Returns the memory left in each limited group, from this process's group up.

    In a container the mount is this group.
    """
    directory = mount / path.strip("/")
    directories = [directory, *directory.parents]
    left = []
    for group in directories[: directories.index(mount) + 1]:
        limit, used = _read(group / limit_name), _read(group / used_name)
        if limit is None or used is None or not limit.strip().isdigit():
            continue  # "max", or a group without the memory controller
        if int(limit) < _UNLIMITED:
            left.append(int(limit) - int(used) + _reclaimable_bytes(group / "memory.stat"))
    return left


def _reclaimable_bytes(stat: Path) -> int:
    """Returns the bytes of file pages not used recently: they count as used, but the kernel reclaims them when
    needed.
    """
    values = dict(line.split()[:2] for line in (_read(stat) or "").splitlines() if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
