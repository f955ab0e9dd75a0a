"""tools.tree_bounds: what may shrink and cannot grow."""

import tomllib

import pytest

from tools.tree_bounds import MAX_LINES, check_bounds, lowered, measure, read_bounds, write_bounds

NONE = {"lines": {}, "files": {}, "classes": {}}
LONG = "x = 1\n" * (MAX_LINES + 1)


@pytest.mark.parametrize("path", ["src/weft/a.py", "cpp/model/a.cpp", "cpp/model/a.h"])
def test_a_file_past_the_limit_is_found_unless_it_is_a_table(path):
    """Modules and C++ alike."""
    assert not measure({path: "x = 1\n" * MAX_LINES})["lines"]
    found = measure({path: LONG})
    (finding,) = check_bounds(found, NONE)
    assert finding.startswith(f"{path}:1: 401 lines")
    assert not list(check_bounds(found, NONE, [path]))


@pytest.mark.parametrize("path", ["src/weft/pb/a_pb2.py", "tests/test_a.py", "docs/a.md"])
def test_generated_files_and_tests_have_no_bound_here(path):
    """Tests are long lists of cases."""
    assert measure({path: LONG}) == NONE


def test_a_long_file_does_not_grow_and_leaves_the_list_when_it_is_short():
    """The bound is what it had."""
    bounds = {**NONE, "lines": {"src/weft/a.py": 401}}
    assert not list(check_bounds(measure({"src/weft/a.py": LONG}), bounds))
    assert "402 lines" in next(check_bounds(measure({"src/weft/a.py": LONG + "\n"}), bounds))
    assert "no longer needed" in next(check_bounds(NONE, bounds))


def test_a_name_that_is_shared_is_found():
    """Of modules, and of public classes at their top; packages and private classes may share theirs."""
    texts = {
        f"src/weft/{package}/{name}": "class A:\n    class B: ...\nclass _C: ...\n"
        for package in ("core", "web")
        for name in ("same.py", "__init__.py")
    }
    found = measure(texts)
    assert found == {"lines": {}, "files": {"same.py": 2}, "classes": {"A": 4}}
    files, classes = check_bounds(found, NONE)
    assert "2 files are called same.py (limit 1)" in files
    assert "4 public classes are called A (limit 1)" in classes
    assert not list(check_bounds(found, found))


def test_bounds_are_lowered_and_never_raised():
    """A name that is no longer shared leaves the list, and one that is new does not come in."""
    bounds = {"lines": {"a": 500}, "files": {"b.py": 2, "c.py": 3}, "classes": {"D": 2}}
    found = {"lines": {"a": 450}, "files": {"c.py": 2}, "classes": {"D": 3, "E": 2}}
    assert lowered(found, bounds) == {
        "lines": {"a": 450},
        "files": {"c.py": 2},
        "classes": {"D": 2},
    }


def test_the_file_of_bounds_is_read_as_it_was_written(tmp_path):
    """A tree without one has no exceptions."""
    assert read_bounds(tmp_path) == (NONE, [])
    bounds = {"lines": {"src/weft/a.py": 401}, "files": {"b.py": 2}, "classes": {"C": 3}}
    (tmp_path / "tools").mkdir()
    text = write_bounds(bounds, ["src/weft/t.py"])
    (tmp_path / "tools" / "tree_bounds.toml").write_text(text)
    assert read_bounds(tmp_path) == (bounds, ["src/weft/t.py"])
    assert tomllib.loads(text)["tables"] == ["src/weft/t.py"]
