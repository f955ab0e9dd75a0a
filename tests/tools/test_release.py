"""tools.release"""

from pathlib import Path

import pytest

from tools import release


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
