"""tools.set_up"""

import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.cli.running import clean_environment
from tools import preflight, set_up
from tools.set_up import ROOT, Step, native_digest, run, take_from_wheel, wheel_name

# As pip and the compiler write it.
COLLECTING = "  Collecting numpy<3,>=2.2 (from weft==0.1.0)\n"
DOWNLOADING = "  Downloading numpy-2.4.6-cp311-cp311-linux_x86_64.whl (16.9 MB)\n"
PROGRESS = "Progress 1048576 of 4194304\n"
INSTALLING = "  Installing collected packages: numpy, tqdm, weft\n"
PLAIN = "  [9/18] Building CXX object CMakeFiles/weft_core.dir/cpp/cpu.cpp.o\n"
KERNEL = "  [10/18] Building CXX object CMakeFiles/weft_core.dir/cpp/kernels/avx2.cpp.o\n"
LAST = "  [18/18] Linking CXX shared module _core.so\n"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([COLLECTING], "looking for numpy"),
        ([DOWNLOADING, PROGRESS], "numpy-2.4.6-cp311-cp311-linux_x86_64.whl, 1 MiB of 4 MiB"),
        ([INSTALLING], "installing 3 packages"),
        ([PLAIN] * 9, "compiling, "),
        ([PLAIN, LAST], "Weft, 0 s"),
    ],
)
def test_output_becomes_what_it_means(lines: list[str], shown: str):
    """One line says the phase and how far it is; with the compiler behind it, no more of that."""
    step = Step("Weft", [])
    for line in lines:
        step.read(line)
    assert shown in step.describe()


def test_the_compiler_has_a_fraction_and_a_time_left(monkeypatch: pytest.MonkeyPatch):
    """A kernel counts for several files: it takes as long."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    step, slower = Step("Weft", []), Step("Weft", [])
    for line in [PLAIN] * 9:
        step.read(line)
        slower.read(line)
    step.read(KERNEL)
    slower.read(PLAIN)
    share, slower_share = (int(s.describe().split("%")[0].split()[-1]) for s in (step, slower))
    assert share > slower_share > 0
    assert "about 1 s left" in step.describe()


def test_a_file_that_takes_long_puts_the_end_off(monkeypatch: pytest.MonkeyPatch):
    """Rather than one second left for a minute."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])
    step = Step("Weft", [])
    step.read(PLAIN)
    clock.append(90.0)
    for line in [PLAIN] * 9:
        step.read(line)
    clock.append(1000.0)
    assert re.search(r"about \d+ min left", step.describe())


def test_steps_are_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each is named when it begins, and what it wrote is in the log."""
    steps = [Step(name, [sys.executable, "-c", f"print('{name} done')"]) for name in ("one", "two")]
    run(steps, tmp_path / "log")
    assert capsys.readouterr().out == "[1/2] one\n[2/2] two\n"
    assert (tmp_path / "log").read_text() == "one done\ntwo done\n"


def test_a_step_that_fails_ends_the_set_up_with_its_last_words(tmp_path: Path):
    """And says where the rest of them is."""
    bad = Step("one", [sys.executable, "-c", "print('no compiler'); raise SystemExit(3)"])
    with pytest.raises(
        SystemExit, match=r"no compiler\n\none failed; the whole output is in .*log"
    ):
        run([bad, Step("two", [sys.executable, "-c", "print(2)"])], tmp_path / "log")
    assert "2" not in (tmp_path / "log").read_text()


def test_a_wheel_is_taken_for_the_same_sources_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The name holds a digest of all that is compiled; a changed file has another."""
    (tmp_path / "cpp").mkdir()
    (tmp_path / "CMakeLists.txt").write_text("project(weft)")
    (tmp_path / "cpp" / "a.cpp").write_text("int a;")
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    before = native_digest()
    (tmp_path / "cpp" / "a.cpp").write_text("int b;")
    assert native_digest() != before
    assert before[0] == "0"  # what a build tag must begin with


@pytest.fixture
def native_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "native"
    path.mkdir()
    monkeypatch.setattr(set_up, "NATIVE_DIR", path)
    return path


def core() -> Path:
    """The module that these tests run with."""
    (path,) = (ROOT / "src/weft/compute/native").glob("_core*.so")
    return path


def as_wheel(path: Path, module: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"weft/compute/native/{core().name}", module)
    return path


def test_a_module_that_does_not_run_here_is_compiled_instead(tmp_path: Path, native_dir: Path):
    """A wheel of a newer system, or a broken one: nothing of it stays."""
    sound = as_wheel(tmp_path / "sound.whl", core().read_bytes())
    broken = as_wheel(tmp_path / "broken.whl", core().read_bytes()[:4096])
    assert take_from_wheel(sound)
    assert [path.name for path in native_dir.iterdir()] == [core().name]
    assert not take_from_wheel(broken)
    assert list(native_dir.iterdir()) == []


def test_the_tool_needs_nothing_that_it_installs():
    """Not even what Weft needs: it runs before there is any of it."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "import sys; sys.path[:0] = ['src', '.']; import tools.set_up",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=clean_environment())


class TestProblems:
    """Each is a sentence with a command, before anything is fetched."""

    @pytest.fixture(autouse=True)
    def _need_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(preflight.DISK_BYTES, "core", 0)
        monkeypatch.setattr(preflight, "MEMORY_BYTES", 0)

    @staticmethod
    def of(target: Path) -> list[str]:
        return list(preflight.problems(target, "core", compiles=True))

    def test_this_machine_has_none(self, tmp_path: Path):
        """The tests themselves were set up here; the directory need not exist."""
        assert self.of(tmp_path / "new" / ".venv") == []

    @pytest.mark.parametrize(
        ("compiler", "message"),
        [
            ("/no/compiler", "CXX=/no/compiler is not a program; install one that knows C++20"),
            ("false", "The C++ compiler false does not know C++20"),
        ],
    )
    def test_a_missing_compiler_is_named(self, tmp_path, monkeypatch, compiler: str, message: str):
        """And so is one that is too old."""
        monkeypatch.setenv("CXX", compiler)
        (problem,) = self.of(tmp_path)
        assert problem.startswith(message)
        assert "install" in problem.rpartition(": ")[2]

    def test_a_path_without_a_compiler_is_named(self, tmp_path, monkeypatch):
        """Nothing is found under the usual names."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        (problem,) = self.of(tmp_path)
        assert problem.startswith("No C++ compiler was found; install one")

    def test_a_full_disk_is_named(self, tmp_path, monkeypatch):
        """An environment that exists already is only updated, which needs less."""
        monkeypatch.setitem(preflight.DISK_BYTES, "core", 2**60)
        (problem,) = self.of(tmp_path)
        assert re.match(r"Only .* of disk is free at .*, and the set-up needs .*: du -h ", problem)
        (tmp_path / "core.stamp").touch()
        assert self.of(tmp_path) == []

    def test_little_memory_is_named(self, tmp_path, monkeypatch):
        """Swap counts, since the compiler may use it."""
        monkeypatch.setattr(preflight, "MEMORY_BYTES", 2**60)
        (problem,) = self.of(tmp_path)
        assert "of memory is free, and compiling needs" in problem
        assert problem.endswith("make wheel")

    def test_a_problem_ends_make_before_anything_is_made(self, tmp_path: Path):
        """One line, and no directory."""
        command = [sys.executable, "-m", "tools.set_up", str(tmp_path / ".venv"), "core"]
        environment = clean_environment(CXX="/no/compiler", PYTHONPATH="src")
        if (set_up.DIST / wheel_name()).exists():
            pytest.skip("nothing is compiled here")
        made = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False
        )
        assert made.returncode == 1
        assert made.stderr.startswith("CXX=/no/compiler is not a program")
        assert made.stderr.count("\n") == 1
        assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_a_clone_with_a_wheel_beside_it_does_not_compile(tmp_path: Path):
    """It is installed in place all the same: what is changed in its src is what runs."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    (clone / "dist").mkdir()
    as_wheel(clone / "dist" / wheel_name(), core().read_bytes())
    made = subprocess.run(
        ["make", ".venv/core.stamp", f"PYTHON={sys.executable}"], cwd=clone, capture_output=True,
        text=True, env=clean_environment(CXX="/no/compiler"), check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"nothing to compile: dist/{wheel_name()} has it" in made.stdout
    command = [
        clone / ".venv/bin/python",
        "-c",
        "import weft.compute.native as n; print(n.__file__)",
    ]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(clone / "src/weft/compute/native/__init__.py")
