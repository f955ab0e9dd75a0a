"""Checks of the machine before `make` fetches or compiles anything: each problem is one sentence with a command."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from weft.core.observe.readable import format_bytes

GIB: Final = 2**30
# Installed on x86-64: 0.24 GiB for `make serve`, 2.1 GiB with the tests. Pip and the compiler need more meanwhile.
DISK_BYTES: Final = {"core": GIB, "dev": 3 * GIB}
# The compiler takes up to 0.4 GiB for a kernel, and compiles two or more at once.
MEMORY_BYTES: Final = GIB
_PROGRAM: Final = "#include <concepts>\n#include <span>\nstatic_assert(std::integral<int>);\n"


def problems(target: Path, part: str, *, compiles: bool) -> Iterator[str]:
    """Yields what prevents the set-up of `part`, a key of `DISK_BYTES`, in the directory `target`."""
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        yield "This Python has no venv module; install it: " + _install("python3-venv", "python3")
    if compiles:
        yield from _header_problems()
        yield from _compiler_problems()
        yield from _memory_problems(Path("/proc/meminfo"))
    if not (target / f"{part}.stamp").exists():  # an update needs less
        yield from _disk_problems(target, DISK_BYTES[part])


def _header_problems() -> Iterator[str]:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        yield f"Python's headers are missing ({header}); install them: " + _install(
            "python3-dev", "python3-devel"
        )


def _compiler_problems() -> Iterator[str]:
    given = os.environ.get("CXX")
    names = [given] if given else ["c++", "g++", "clang++"]
    compiler = next((name for name in names if shutil.which(name.split()[0])), None)
    how = _install("g++", "gcc-c++")
    if compiler is None:
        found = f"CXX={given} is not a program" if given else "No C++ compiler was found"
        yield f"{found}; install one that knows C++20, such as GCC 12 or Clang 15: {how}"
        return
    command = [*compiler.split(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    tried = subprocess.run(command, input=_PROGRAM, text=True, capture_output=True, check=False)
    if tried.returncode:
        yield f"The C++ compiler {compiler} does not know C++20; install GCC 12, Clang 15 or newer: {how}"


def _memory_problems(table: Path) -> Iterator[str]:
    """`table` is Linux's /proc/meminfo; other systems are not checked."""
    if not table.exists():
        return
    sizes = dict(line.split(":") for line in table.read_text().splitlines())
    free = sum(int(sizes[name].split()[0]) for name in ("MemAvailable", "SwapFree")) * 1024
    if free < MEMORY_BYTES:
        yield (
            f"Only {format_bytes(free)} of memory is free, and compiling needs {format_bytes(MEMORY_BYTES)}; stop "
            "other programs, or compile on another machine: make wheel"
        )


def _disk_problems(target: Path, num_bytes: int) -> Iterator[str]:
    folder = next(path for path in (target, *target.resolve().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        yield (
            f"Only {format_bytes(free)} of disk is free at {folder}, and the set-up needs {format_bytes(num_bytes)}; "
            f"look for what can go: du -h {folder} | sort -h | tail"
        )


def _install(debian: str, fedora: str) -> str:
    """Returns the command that installs a package on this system."""
    if platform.system() == "Darwin":
        return "xcode-select --install"
    if shutil.which("dnf"):
        return f"sudo dnf install {fedora}"
    return f"sudo apt install {debian}"
