"""What `make` does before a first command, shown while it does it: environment, tools, compiler, packages.

    PYTHONPATH=src python3 -m tools.set_up VENV core|dev|site|release|wheel

Needs nothing but Python and the sources. A wheel in dist/ that was made of the same C++ sources for this platform
(`make wheel`) is taken instead of compiling.
"""

import hashlib
import os
import platform
import queue
import re
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.preflight import DISK_BYTES, problems
from weft.core.observe.readable import format_bytes, format_left
from weft.core.observe.terminal import StatusLine

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
NATIVE_DIR = ROOT / "src" / "weft" / "compute" / "native"
_OLDEST_PIP = (25, 1)  # of `pip install --group`
_TAIL = 40  # lines of output that explain a failure
_LINE_PERIOD_S = 10.0  # between lines, where there is no terminal to write over
_COMPILED = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_FETCHED = re.compile(r"Progress (\d+) of (\d+)")
_FILE = re.compile(r"Downloading (\S+)")
_WORDS = (  # what pip says, and what is shown
    (re.compile(r"Collecting ([\w.-]+)"), "looking for {}"),
    (re.compile(r"Installing build dependencies|Installing backend dependencies"), "build tools"),
    (re.compile(r"Configuring CMake"), "looking for the compiler"),
    (re.compile(r"Installing collected packages: (.*)"), "installing {} packages"),
)
# Kernels for vector units take the compiler so many times as long as another file.
_HEAVY = re.compile(r"kernels/(amx|avx)")
_HEAVY_TIMES = 8


class Step:
    """One command of the set-up, and what its output says of how far it is."""

    def __init__(self, title: str, command: Sequence[str | Path]) -> None:
        self.title = title
        self.command = [str(word) for word in command]
        self._started = time.monotonic()
        self._compiling_since: float | None = None
        self._ends: float | None = None  # the compiler's work, as far as can be guessed
        self._num_done = 0
        self._share = 0.0
        self._file = ""
        self._detail = ""
        heavy = (path for path in (ROOT / "cpp/kernels").glob("*.cpp") if _HEAVY.search(str(path)))
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        self._extra = (_HEAVY_TIMES - 1) * len(list(heavy)) if is_x86 else 0

    def read(self, line: str) -> None:
        """Take in a line of its output."""
        if found := _COMPILED.search(line):
            self._take_compiled(int(found[1]), int(found[2]), found[3])
        elif found := _FETCHED.search(line):
            done, size = int(found[1]), int(found[2])
            self._detail = f"{self._file}, {format_bytes(done)} of {format_bytes(size)}"
        elif found := _FILE.search(line):
            self._file = self._detail = found[1].rpartition("/")[2]
        else:
            for pattern, words in _WORDS:
                if found := pattern.search(line):
                    given = found[1] if pattern.groups else ""
                    self._detail = words.format(given.count(",") + 1 if "," in given else given)

    def _take_compiled(self, num_done: int, num_files: int, what: str) -> None:
        if self._compiling_since is None:
            self._compiling_since = time.monotonic()
        self._num_done += _HEAVY_TIMES if _HEAVY.search(what) else 1
        num_all = max(num_files + self._extra, self._num_done)
        share = self._share = self._num_done / num_all
        if share >= 0.05:
            spent = time.monotonic() - self._compiling_since
            self._ends = self._compiling_since + spent / share
        self._detail = f"compiling, {share:.0%}"
        if num_files == num_done:
            self._detail, self._ends = "", None

    def _overdue_s(self) -> float:
        """What is left at the least, where a file takes longer than was guessed: half of it by the pace so far."""
        assert self._compiling_since is not None
        spent = time.monotonic() - self._compiling_since
        return max(spent * (1 / self._share - 1) / 2, 1.0)

    def describe(self) -> str:
        """Its name, what it is at, and its time so far."""
        spent = f"{time.monotonic() - self._started:.0f} s"
        left = ""
        if self._ends is not None:
            left = (
                f"about {format_left(max(self._ends - time.monotonic(), self._overdue_s()))} left"
            )
        return ", ".join(part for part in (self.title, self._detail, left, spent) if part)


def run(steps: Sequence[Step], log: Path) -> None:
    """Run them in order. The first that fails ends the program, with the end of its output."""
    status = StatusLine(sys.stdout)
    with log.open("a", encoding="utf-8", errors="replace") as file:
        for number, step in enumerate(steps, start=1):
            prefix = f"[{number}/{len(steps)}] "
            if not status.is_live:
                print(f"{prefix}{step.title}", flush=True)
            tail = deque[str](maxlen=_TAIL)
            due = time.monotonic() + _LINE_PERIOD_S
            for line in _output(step, tail):
                file.write(line)
                status.show(prefix + step.describe())
                if not status.is_live and time.monotonic() >= due:
                    print(prefix + step.describe(), flush=True)
                    due = time.monotonic() + _LINE_PERIOD_S
            status.clear()
            if tail and tail[-1] == "":
                tail.pop()
                sys.exit(f"{''.join(tail)}\n{step.title} failed; the whole output is in {log}")
            if status.is_live:
                print(prefix + step.describe(), flush=True)


def _output(step: Step, tail: deque[str]) -> Iterator[str]:
    """Lines as they come, and "" now and then; `tail` ends in "" where the command fails."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        step.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, errors="replace", cwd=ROOT, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None

        def take(stream: Iterator[str]) -> None:
            for line in stream:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=take, args=(process.stdout,), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                yield ""
                continue
            if line is None:
                break
            step.read(line)
            tail.append(line)
            yield line
    if process.returncode:
        tail.append("")


def native_digest() -> str:
    """Of all that the compiled module is made from; begins with a digit, as a wheel's build tag must."""
    digest = hashlib.sha256()
    for path in (ROOT / "CMakeLists.txt", *sorted((ROOT / "cpp").rglob("*.[ch]*"))):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"0{digest.hexdigest()[:16]}"


def wheel_name() -> str:
    """The file that `make wheel` makes here, and that is looked for."""
    source = (ROOT / "src/weft/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"', source, re.MULTILINE)
    assert found is not None
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform_tag = re.sub(r"[-.]", "_", sysconfig.get_platform())
    return f"weft_serve-{found[1]}-{native_digest()}-{python}-{python}-{platform_tag}.whl"


def take_from_wheel(wheel: Path) -> bool:
    """Put the compiled module of `wheel` into the source tree, if it runs here."""
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (n for n in archive.namelist() if re.search(r"native/_core\.[^/]*(so|pyd)$", n))
        target = NATIVE_DIR / Path(member).name
        target.unlink(missing_ok=True)  # a program that runs may have it mapped
        target.write_bytes(archive.read(member))
    command = [sys.executable, "-c", "import _core"]
    result = subprocess.run(command, cwd=NATIVE_DIR, capture_output=True, check=False)
    if result.returncode:
        target.unlink()
    return result.returncode == 0


def environment_steps(venv: Path) -> Iterator[Step]:
    """What makes `venv`, and a pip that is new enough."""
    python = venv / "bin/python"
    version = "import pip; print(*pip.__version__.split('.')[:2])"
    found = b""
    if python.exists():
        found = subprocess.run([python, "-c", version], capture_output=True, check=False).stdout
    if not found:
        yield Step("Python environment", [sys.executable, "-m", "venv", venv])
    if tuple(map(int, found.split())) < _OLDEST_PIP:
        yield Step("pip", [*pip(venv), "install", "--upgrade", "pip>=25.1"])


def pip(venv: Path) -> list[str | Path]:
    """pip of `venv`, with all that it does on its output."""
    return [venv / "bin/python", "-m", "pip", "-v", "--disable-pip-version-check"]


def main(venv: Path, what: str) -> None:
    """Make that part of `venv`, or the wheel."""
    wheel = DIST / wheel_name()
    if what in DISK_BYTES:
        compiles = what == "core" and not wheel.exists()
        if found := list(problems(venv, what, compiles=compiles)):
            sys.exit("\n".join(found))
    venv.mkdir(parents=True, exist_ok=True)
    log = venv / "setup.log"
    install = [*pip(venv), "install", "--progress-bar", "raw"]
    match what:
        case "core":
            steps = list(environment_steps(venv))
            has_module = wheel.exists() and take_from_wheel(wheel)
            why = f"nothing to compile: dist/{wheel.name} has it" if has_module else "some minutes"
            print(f"Setting up Weft in {venv}, {why}", flush=True)
            settings = ["-C", "wheel.cmake=false"] if has_module else []
            run([*steps, Step("Weft", [*install, *settings, "--editable", "."])], log)
            if has_module:  # as CMakeLists.txt does it
                (site,) = venv.glob("lib/python*/site-packages")
                (site / "weft-source.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
        case "dev":
            run([Step("what tests and checks need", [*install, "--group", "dev"])], log)
        case "site":
            run([Step("what makes the site", [*install, "--group", "site"])], log)
        case "release":
            group = Step("what makes a release", [*install, "--group", "release"])
            run([*environment_steps(venv), group], log)
        case "wheel":
            name = wheel_name()
            tag = f"wheel.build-tag={native_digest()}"
            command = [*pip(venv), "wheel", "--no-deps", "-C", tag, "--wheel-dir", DIST, "."]
            run([Step("wheel", command)], log)
            size = format_bytes((DIST / name).stat().st_size)
            print(f"dist/{name}, {size}: a clone with it in dist/ does not compile")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
