"""Build the C++ core for ARM of 64 bits, and a Python that runs it under emulation: on a Debian 12 of another CPU.

    python -m tools.build_aarch64
    QEMU_CPU=neoverse-n1 build/aarch64/python -m weft.cli.entry doctor

Cross compiler, emulator and Python are Debian's packages, which are unpacked and not installed; what Weft depends on
comes as wheels. They go to ~/.cache/weft/aarch64 (or XDG_CACHE_HOME), once: some 900 MB. The rest is build/aarch64.
"""

import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nanobind

from tools.cached import HOME, run, unpack_debs

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "aarch64"
CACHE = HOME / "weft" / "aarch64"
SUITE = "bookworm"
PYTHON = "3.11"  # that suite's, and so its packages below
GCC = "12"
GLIBC = 36  # 2.36
TRIPLE = "aarch64-linux-gnu"
QEMU = "qemu-aarch64-static"
TOOLS = (
    *(f"{name}-{GCC}-{TRIPLE}" for name in ("g++", "gcc", "cpp")),
    *(f"lib{name}-{GCC}-dev-arm64-cross" for name in ("gcc", "stdc++")),
    *(f"{name}-arm64-cross" for name in ("libc6-dev", "libc6", "linux-libc-dev", "libgcc-s1")),
    *("libstdc++6-arm64-cross", f"binutils-{TRIPLE}", "qemu-user-static"),
    *("libgmp10", "libisl23", "libmpc3", "libmpfr6"),  # of the compiler
)
LIBRARIES = (
    *("libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libsqlite3-0", "libssl3", "libstdc++6", "libuuid1", "zlib1g"),
)
PYTHON_PACKAGES = (
    *(f"libpython{PYTHON}-{part}" for part in ("minimal", "stdlib", "dev")),
    f"python{PYTHON}-minimal",
)
TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
STARTER = """#!/bin/sh
export PYTHONHOME={root}/usr PYTHONPATH={tree}/src:{tree}:{packages}
QEMU_LD_PREFIX={root} exec {qemu} {root}/usr/bin/python{python} "$@"
"""


class UnavailableError(Exception):
    """This machine cannot build it. Says why."""


def fetch(*words: str | Path, cwd: Path = ROOT) -> None:
    """A command that downloads; without what it brings this machine cannot build."""
    try:
        run(*words, cwd=cwd)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(
            f"what building for ARM needs could not be downloaded: {error}"
        ) from error


def check_machine() -> None:
    """Whether Debian's packages of this suite can run here."""
    release = platform.freedesktop_os_release() if sys.platform == "linux" else {}
    is_debian = release.get("VERSION_CODENAME") == SUITE and shutil.which("apt-get")
    if not is_debian or platform.machine() != "x86_64" or sys.version_info[:2] != (3, 11):
        raise UnavailableError(
            f"building for ARM needs Debian 12 ({SUITE}) on x86-64 with Python {PYTHON}, whose packages it unpacks;"
            f" this is {release.get('PRETTY_NAME', sys.platform)} on {platform.machine()}"
            f" with Python {platform.python_version()}"
        )


def unpacked(name: str, *packages: str) -> Path:
    """Debian's packages for either architecture, by lists of our own."""
    root = CACHE / name
    if root.exists():
        return root
    parts = root.with_name(f"{name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    state = parts / "apt"
    for directory in ("lists/partial", "archives/partial"):
        (state / directory).mkdir(parents=True)
    own = {
        "APT::Architectures": "amd64,arm64",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state,
    }
    apt = ("apt-get", "-q", *(word for key, to in own.items() for word in ("-o", f"{key}={to}")))
    fetch(*apt, "update", cwd=parts)
    fetch(*apt, "download", *packages, cwd=parts)
    shutil.rmtree(state)
    unpack_debs(parts)
    for other in (parts / "usr" / "bin").glob("qemu-*"):
        if other.name != QEMU:
            other.unlink()
    parts.rename(root)
    return root


def wheels() -> Path:
    """Weft's requirements and those of its tests, in the releases that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *TESTS]
    known = sorted(
        f"{found.name}=={found.version}"
        for found in importlib.metadata.distributions()
        if found.name != "weft" and "+" not in found.version
    )
    digest = hashlib.sha256("\n".join([*wanted, *known]).encode()).hexdigest()[:12]
    directory = CACHE / f"packages-{digest}"
    if directory.exists():
        return directory
    constraints = CACHE / f"constraints-{digest}.txt"
    constraints.write_text("\n".join(known), encoding="utf-8")
    parts = CACHE / f"packages-{digest}.parts"
    shutil.rmtree(parts, ignore_errors=True)
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(GLIBC, 16, -1)]
    fetch(
        *(sys.executable, "-m", "pip", "install", "-q", "--target", parts, "-c", constraints),
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"),
        *(f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")),
        *(f"--platform={name}" for name in (*platforms, "manylinux2014_aarch64")),
        *wanted,
    )
    parts.rename(directory)
    return directory


def compile_core(tools: Path, python: Path) -> Path:
    """The extension module, by the same CMakeLists.txt as on a machine of that architecture."""
    scripts = Path(sys.executable).parent
    environment = {"LD_LIBRARY_PATH": str(tools / "usr" / "lib" / "x86_64-linux-gnu")}
    include = python / "usr" / "include"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": scripts / "ninja",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_SYSROOT": tools,
        "CMAKE_CXX_COMPILER": tools / "usr" / "bin" / f"{TRIPLE}-g++-{GCC}",
        "CMAKE_CXX_FLAGS": f"-I{include}",
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": include / f"python{PYTHON}",
        "nanobind_DIR": nanobind.cmake_dir(),
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    core = BUILD / "core"
    run(scripts / "cmake", "-S", ROOT, "-B", core, "-G", "Ninja", *words, cwd=ROOT, **environment)
    run(scripts / "cmake", "--build", core, cwd=ROOT, **environment)
    (module,) = core.glob("_core.*.so")
    return module


def build() -> Path:
    """The Python that runs Weft's tree of now as on ARM; QEMU_CPU is the CPU that it meets."""
    check_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    tools = unpacked("tools", *TOOLS)
    python = unpacked("python", *(f"{name}:arm64" for name in (*LIBRARIES, *PYTHON_PACKAGES)))
    packages = wheels()
    module = compile_core(tools, python)
    tree = BUILD / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    native = tree / "src" / "weft" / "compute" / "native"
    shutil.copy(module, native / f"_core.cpython-{PYTHON.replace('.', '')}-{TRIPLE}.so")
    starter = BUILD / "python"
    # What a program starts by sys.executable must be the emulator too.
    (tree / "sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(starter)!r}\n")
    starter.write_text(
        STARTER.format(
            root=python,
            tree=tree,
            packages=packages,
            qemu=tools / "usr" / "bin" / QEMU,
            python=PYTHON,
        )
    )
    starter.chmod(0o755)
    return starter


if __name__ == "__main__":
    try:
        print(build())
    except UnavailableError as error:
        sys.exit(str(error))
