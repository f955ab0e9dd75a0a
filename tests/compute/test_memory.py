"""weft.compute.memory"""

from pathlib import Path

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


def test_without_a_limit_the_machine_decides(tmp_path):
    """MemAvailable, when the control group says "max"."""
    root = machine(
        tmp_path,
        available=8 * GIB,
        groups="0::/app\n",
        files={
            "sys/fs/cgroup/app/memory.max": "max\n",
            "sys/fs/cgroup/app/memory.current": "1000\n",
        },
    )
    assert free_memory_bytes(root) == 8 * GIB


def test_the_tightest_group_of_version_two_decides(tmp_path):
    """A parent's limit counts too, and file pages that can be dropped are free."""
    root = machine(
        tmp_path,
        available=8 * GIB,
        groups="0::/pod/app\n",
        files={
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/pod/app/memory.max": f"{6 * GIB}\n",
            "sys/fs/cgroup/pod/app/memory.current": f"{GIB}\n",
        },
    )
    assert free_memory_bytes(root) == 3 * GIB


def test_a_container_sees_its_own_group_as_the_mount(tmp_path):
    """The path in /proc/self/cgroup may not exist inside; the mount itself is then the group."""
    root = machine(
        tmp_path,
        available=8 * GIB,
        groups="4:memory:/docker/abc\n",
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    )
    assert free_memory_bytes(root) == GIB


def test_version_one_without_a_limit_is_no_limit(tmp_path):
    """There "no limit" is a number near 2**63."""
    root = machine(
        tmp_path,
        available=8 * GIB,
        groups="4:memory:/\n",
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
        },
    )
    assert free_memory_bytes(root) == 8 * GIB


def test_elsewhere_the_whole_memory_counts(tmp_path):
    """Without /proc the machine's size is the best that is known."""
    assert free_memory_bytes(tmp_path) > 0


def test_this_machine_has_a_plausible_amount():
    """More than nothing, less than a petabyte."""
    assert 1 << 20 < free_memory_bytes() < 1 << 50
