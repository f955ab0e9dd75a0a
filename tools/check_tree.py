"""Check what the other tools cannot: lengths, file names, calls that execute data, stray text, words in names.

Prints one line a finding, as `path:line: what`, and exits 1 if there are any.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file too

from tools.tree_bounds import check_bounds, measure, read_bounds

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_MODULES = 15  # of a package, beside its __init__.py
# A kernel is one function, with a line for each argument
DEVICE_CODE = "src/weft/compute/gpu/kernels/"
VAGUE_NAMES = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}
# Each of these runs, or may run, what it is given. (Modules such as pickle are banned by the linter.)
EXECUTING_CALLS = {"eval", "exec", "__import__"}
EXECUTING_METHODS = {"recv_pyobj", "send_pyobj"}
EXECUTING_KEYWORDS = {"allow_pickle", "trust_remote_code"}
GENERATED = "src/weft/pb/"
# These files quote sentences that are refused elsewhere: the changelog, the rule itself, and its test.
QUOTING = {"CHANGELOG.md", "docs/style.md", "tests/tools/test_check_tree.py"}
# A shorter phrase may be a part of a good sentence, so it is refused only as a whole text.
_LEAST_WORDS = 4
LOCAL_PATHS = re.compile(r"(?<![\w.~}/])/(work|root|Users|home/\w+)/\w")


def check_module(path: str, text: str) -> Iterator[str]:
    """Findings in one Python module of ours."""
    num_lines = text.count("\n")
    if num_lines > MAX_LINES:
        yield f"{path}:1: {num_lines} lines; split it by reason to change (limit {MAX_LINES})"
    if Path(path).name in VAGUE_NAMES:
        yield f"{path}:1: this name does not say what is inside"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from _check_call(path, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or 0) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES and not path.startswith(DEVICE_CODE):
                yield f"{path}:{node.lineno}: {node.name} has {num_lines} lines (limit {MAX_FUNCTION_LINES})"
            is_test = path.startswith("tests/") and node.name.startswith("test_")
            if is_test and ast.get_docstring(node) is None:
                yield f"{path}:{node.lineno}: {node.name} has no docstring; say the rule it pins"


def _check_call(path: str, call: ast.Call) -> Iterator[str]:
    match call.func:
        case ast.Name(id=name) if name in EXECUTING_CALLS:
            yield f"{path}:{call.lineno}: {name}() executes what it is given"
        case ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in EXECUTING_CALLS:
            yield f"{path}:{call.lineno}: builtins.{name}() executes what it is given"
        case ast.Attribute(attr=name) if name in EXECUTING_METHODS:
            yield f"{path}:{call.lineno}: .{name}() executes what it is given"
        case _:
            pass
    for keyword in call.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in EXECUTING_KEYWORDS and not is_off:
            yield f"{path}:{call.lineno}: {keyword.arg} executes what it is given"


def not_in_names(glossary: str) -> frozenset[str]:
    """The words that the last section of the glossary lists."""
    _, _, section = glossary.partition("## Not in names")
    return frozenset(re.findall(r"`([a-z]+)`", section))


def check_words(path: str, text: str, refused: frozenset[str]) -> Iterator[str]:
    """Findings in the names that a module gives: its own, and of what it defines."""
    names = [(1, Path(path).stem)]
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.append((node.lineno, name))
            case ast.arg(arg=name):
                names.append((node.lineno, name))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.append((node.lineno, name))
            case _:
                pass
    for line, name in names:
        for word in sorted(set(words_of(name)) & refused):
            yield f"{path}:{line}: {name} says {word!r}; docs/glossary.md has the field's word"


def words_of(name: str) -> list[str]:
    """The words of a name, whichever case joins them."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


class Refused(NamedTuple):
    """The texts in the column *not* of docs/style.md."""

    sentences: tuple[str, ...]  # refused anywhere in a text; in lower case
    wholes: frozenset[str]  # refused as a whole string, table cell or title
    docstrings: re.Pattern[str]  # refused as a whole docstring


def refused_texts(style: str) -> Refused:
    """Reads the table of docs/style.md; `X` in a refused docstring stands for any name."""
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+) \|$", style, re.MULTILINE)
    texts = [row.strip(" .") for row, better in rows if row != "not" and better != "(no docstring)"]
    texts = [text for text in texts if text.strip("-")]
    docstrings = [row for row, better in rows if better == "(no docstring)"]
    patterns = [
        re.escape(text).replace("X", "[^`]+") for row in docstrings for text in row.split(" / ")
    ]
    return Refused(
        tuple(text.lower() for text in texts if len(text.split()) >= _LEAST_WORDS),
        frozenset(text for text in texts if len(text.split()) < _LEAST_WORDS),
        re.compile("|".join(patterns) or r"(?!)"),
    )


def check_sentences(path: str, text: str, refused: Refused) -> Iterator[str]:
    """Findings in any text file: sentences that docs/style.md replaces by better ones."""
    if path in QUOTING:
        return
    lowered = text.lower()
    for sentence in refused.sentences:
        at = lowered.find(sentence)
        if at >= 0:
            number = lowered.count("\n", 0, at) + 1
            yield f"{path}:{number}: {sentence!r}; docs/style.md has a better sentence"
    wholes = _strings(text) if path.endswith(".py") else _cells(text)
    for number, whole in wholes:
        if whole.strip(" .") in refused.wholes:
            yield f"{path}:{number}: {whole!r}; docs/style.md has a better sentence"
    for number, docstring in _docstrings(text) if path.endswith(".py") else ():
        if refused.docstrings.fullmatch(docstring):
            yield f"{path}:{number}: {docstring!r} says nothing; leave the docstring out"


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """Line and value of each string of a Python module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a Python module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def _cells(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each heading and table cell; a number before a heading is left out."""
    for number, line in enumerate(text.splitlines(), 1):
        for cell in re.sub(r"^#+ (\d+\. )?", "|", line).split("|"):
            yield number, cell.strip()


def check_text(path: str, text: str) -> Iterator[str]:
    """Findings in any text file: paths of somebody's machine."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := LOCAL_PATHS.search(line):
            yield f"{path}:{number}: {found.group()}... is a path of one machine"


def check_tree(root: Path) -> Iterator[str]:
    """Findings in every file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    glossary = root / "docs" / "glossary.md"
    refused = not_in_names(glossary.read_text("utf-8") if glossary.is_file() else "")
    style = root / "docs" / "style.md"
    sentences = refused_texts(style.read_text("utf-8") if style.is_file() else "")
    paths = sorted(set(listed.split("\0")) - {""})
    yield from check_packages(path for path in paths if (root / path).is_file())
    texts: dict[str, str] = {}
    for path in paths:
        file = root / path
        if path.startswith(GENERATED) or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        texts[path] = text
        yield from check_text(path, text)
        yield from check_sentences(path, text, sentences)
        if path.endswith(".py"):
            yield from check_module(path, text)
        if path.endswith(".py") and path.startswith("src/weft/"):
            yield from check_words(path, text, refused)
    yield from check_bounds(measure(texts), *read_bounds(root))


def check_packages(paths: Iterable[str]) -> Iterator[str]:
    """Packages of ours with more modules than a reader takes in at once."""
    modules = (Path(path) for path in paths if path.startswith("src/") and path.endswith(".py"))
    sizes = Counter(path.parent.as_posix() for path in modules if path.name != "__init__.py")
    for package, size in sorted(sizes.items()):
        if size > MAX_MODULES:
            yield f"{package}:1: {size} modules; split it by reason to change (limit {MAX_MODULES})"


def package_sizes(root: Path) -> list[tuple[str, int]]:
    """Lines of Python by package of ours, generated code left out; the largest first."""
    package = root / "src" / "weft"
    sizes = Counter(
        {
            directory.name: sum(
                path.read_text(encoding="utf-8").count("\n") for path in directory.rglob("*.py")
            )
            for directory in package.iterdir()
            if directory.is_dir() and directory.name not in ("pb", "__pycache__")
        }
    )
    return sizes.most_common()


def main() -> int:
    """Print the findings of this repository."""
    findings = list(check_tree(ROOT))
    print(", ".join(f"{name} {lines:,}" for name, lines in package_sizes(ROOT)), "lines")
    print("\n".join(findings) if findings else "tree: clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
