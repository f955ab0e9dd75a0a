"""weft.compute.memory"""

from pathlib import Path

import pytest

from weft.compute.memory import free_memory_bytes

GIB = 1 << 30


def machine(root: Path, *, available: int, groups: str, files: dict[str, str]) -> Path:
    """A tree with the files of /proc and /sys that are read."""
    files = files | {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n",
        "proc/self/cgroup": groups,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        # "max" is no limit; MemAvailable then decides.
        ("0::/app", {"app/memory.max": "max", "app/memory.current": 1000}, 8 * GIB),
        # A parent's limit counts too, and file pages that can be dropped are free.
        (
            "0::/pod/app",
            {
                "pod/memory.max": 4 * GIB,
                "pod/memory.current": 2 * GIB,
                "pod/memory.stat": f"anon 5\ninactive_file {GIB}",
                "pod/app/memory.max": 6 * GIB,
                "pod/app/memory.current": GIB,
            },
            3 * GIB,
        ),
        # The path in /proc/self/cgroup may not exist inside; the mount itself is then the group.
        (
            "4:memory:/docker/abc",
            {"memory/memory.limit_in_bytes": 2 * GIB, "memory/memory.usage_in_bytes": GIB},
            GIB,
        ),
        # In version one "no limit" is a number near 2**63.
        (
            "4:memory:/",
            {
                "memory/memory.limit_in_bytes": 9223372036854771712,
                "memory/memory.usage_in_bytes": 1000,
            },
            8 * GIB,
        ),
    ],
    ids=["no limit", "the tightest of version two", "the mount itself", "no limit of version one"],
)
def test_the_tightest_limit_decides(groups, files, free, tmp_path):
    """Of control groups of both versions, and of the machine's 8 GiB."""
    root = machine(
        tmp_path,
        available=8 * GIB,
        groups=f"{groups}\n",
        files={f"sys/fs/cgroup/{name}": f"{value}\n" for name, value in files.items()},
    )
    assert free_memory_bytes(root) == free


def test_elsewhere_the_whole_memory_counts(tmp_path):
    """Without /proc the machine's size is the best that is known."""
    assert free_memory_bytes(tmp_path) > 0


def test_this_machine_has_a_plausible_amount():
    """More than nothing, less than a petabyte."""
    assert 1 << 20 < free_memory_bytes() < 1 << 50
