"""How much memory this process may still take, as the kernel and the control group see it."""

import os
from pathlib import Path

_UNLIMITED = 1 << 60  # control groups of version 1 write a huge number for "no limit"


def free_memory_bytes(root: Path = Path("/")) -> int:
    """The least of what the machine has available and what the control group leaves.

    Where neither can be read (other systems than Linux), the machine's whole memory.
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
    """Limit less use, for the tightest control group that holds this process."""
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
    """What each limited group leaves, from this one up. A container sees its own as the mount."""
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
    """File pages not used of late: counted as used, but given back when memory is asked for."""
    values = dict(line.split()[:2] for line in (_read(stat) or "").splitlines() if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
