"""docs/architecture.md is held true."""

import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w./]+)` \| (.*?) \|(?: (.*?) ?\|)?$", re.MULTILINE)
ROWS = {path: imports or "" for path, _, imports in ROW.findall(PAGE)}
QUESTION = re.compile(
    r"^\| (?P<question>[^|`]+\?) \| `(?P<package>[\w./]+)` \| (?P<answer>.*) \|$", re.MULTILINE
)
QUESTIONS = {
    match["question"]: (match["package"], match["answer"]) for match in QUESTION.finditer(PAGE)
}
PLACE = re.compile(r"`(\w+)` in `([\w./]+)`")
TOP_LEVEL = sorted(path.name for path in (ROOT / "src" / "weft").glob("*/") if path.name[0] != "_")


def named(path: str) -> set[str]:
    return {name for name in ROWS[path].split(", ") if name}


def test_every_package_has_a_row():
    """A directory of code that the page does not explain is a directory nobody finds."""
    packages = {
        str(init.parent.relative_to(ROOT)) for init in (ROOT / "src").glob("weft/*/**/__init__.py")
    }
    assert packages == {path for path in ROWS if path.startswith("src/")}


def test_every_row_is_about_something_that_exists():
    """No row outlives its directory."""
    assert [path for path in ROWS if not (ROOT / path).is_dir()] == []


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("weft", exclude_type_checking_imports=True)


@pytest.mark.parametrize("package", TOP_LEVEL)
def test_a_package_imports_what_its_row_says(graph: grimp.ImportGraph, package: str):
    """Exactly the packages named: neither more, nor a claim that is out of date."""
    name = f"weft.{package}"
    modules = graph.find_descendants(name) | {name}
    imported = {
        target.split(".")[1]
        for module in modules
        for target in graph.find_modules_directly_imported_by(module)
        if target not in modules and target != "weft"
    }
    assert imported == named(f"src/weft/{package}")


def test_imports_point_down_the_table():
    """A package names only packages that stand below it."""
    order = [path.removeprefix("src/weft/") for path in ROWS if path.count("/") == 2]
    upward = {
        (package, target)
        for rank, package in enumerate(order)
        for target in named(f"src/weft/{package}")
        if target not in order[rank + 1 :]
    }
    assert upward == set()


def test_ten_questions_are_answered():
    """A page that loses its questions loses its readers."""
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_names_what_is_there(question: str):
    """Each named class or function is defined in the file, which is in the package or has its whole path."""
    package, answer = QUESTIONS[question]
    places = PLACE.findall(answer)
    files = [ROOT / (path if "/" in path else f"{package}/{path}") for _, path in places]
    texts = [file.read_text(encoding="utf-8") for file in files]
    defined = [
        re.search(rf"^(class|def|Chosen) {name}\b", text, re.MULTILINE) is not None
        for (name, _), text in zip(places, texts, strict=True)
    ]
    assert defined
    assert all(defined), places
