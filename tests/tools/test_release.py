"""tools.release and tools.try_install"""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import release
from tools.try_install import COMPILERS


def test_checksums_are_lines_that_sha256sum_reads(tmp_path: Path):
    """The file of checksums names every other file, and not itself."""
    (tmp_path / "b.whl").write_bytes(b"")
    (tmp_path / "a.tar.gz").write_bytes(b"a")
    (tmp_path / "SHA256SUMS").write_text("old")
    lines = release.checksums(tmp_path).splitlines()
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert [line.split("  ")[1] for line in lines] == ["a.tar.gz", "b.whl"]
    assert lines[1] == f"{empty}  b.whl"


def test_notes_are_the_section_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A version without a section yet has what is unreleased."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    text = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0\n\n- first\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    assert release.changes("0.1.0") == "## 0.1.0\n\n- first\n"
    assert release.changes("0.2.0") == "## Unreleased\n\n- new\n"


@pytest.mark.parametrize(
    ("tag", "is_taken"), [("cp311-cp311", True), ("cp312-abi3", False), ("cp310-cp310", False)]
)
def test_a_wheel_is_tried_with_pythons_that_take_it(
    tag: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
):
    """Here with a Python 3.11: it takes no wheel of another version, nor of the stable ABI of 3.12."""
    monkeypatch.setattr(release, "run", lambda *_: "11")
    assert release.takes("python3.11", Path(f"weft_serve-0.1.0-{tag}-any.whl")) is is_taken


@pytest.mark.parametrize(
    ("has_compiler", "error"),
    [(True, "a compiler is on the PATH: "), (False, "weft is not installed in ")],
)
def test_a_wheel_is_not_tried_where_its_answer_would_prove_nothing(
    has_compiler: bool, error: str, tmp_path: Path
):
    """With a compiler on the PATH, or with Weft from a source tree, an answer says nothing about the wheel."""
    if has_compiler:
        (tmp_path / COMPILERS[0]).touch(mode=0o755)
    shown = subprocess.run(
        [sys.executable, "-S", release.PROGRAM], env={"PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 1
    assert error in shown.stderr


def test_a_wheel_says_which_linux_it_runs_on_and_keeps_the_stable_abi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The wheel of the stable ABI goes through auditwheel, which renames it, and through abi3audit."""
    monkeypatch.setattr(release, "OUT", tmp_path / "out")
    (tmp_path / "out").mkdir()
    ran: list[str] = []

    def run(*words: object, **_: object) -> str:
        ran.append(" ".join(map(str, words)))
        if "wheel" in words:
            (tmp_path / "weft_serve-1-cp312-abi3-linux_x86_64.whl").touch()
        if "auditwheel" in words:
            (tmp_path / "named").mkdir()
            (tmp_path / "named" / "weft_serve-1-cp312-abi3-manylinux_2_34_x86_64.whl").touch()
        return ""

    monkeypatch.setattr(release, "run", run)
    monkeypatch.setattr(sys, "platform", "linux")
    assert release.build("python3.12", tmp_path).name.endswith("manylinux_2_34_x86_64.whl")
    assert [each for each in ran if "abi3audit --strict" in each]
