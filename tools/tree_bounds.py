"""Bounds that may shrink and cannot grow: long files, and names that several files or classes share.

`tree_bounds.toml` has them. `python -m tools.tree_bounds` lowers its bounds to what the tree has now; it raises none.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = "tools/tree_bounds.toml"
MAX_LINES = 400  # of a module, and of a C++ file
_OURS, _GENERATED = "src/weft/", "src/weft/pb/"
_COMMAND = "python -m tools.tree_bounds"
_HEAD = """\
# Bounds that may shrink and cannot grow; `tools/check_tree.py` holds them, `python -m tools.tree_bounds` lowers them.
# Lines of files that are longer than {limit}, and how many files or public classes share a name.
"""

Bounds = Mapping[str, Mapping[str, int]]


def measure(texts: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Returns what the bounds are about, of files by path: long files and shared names."""
    lines = {path: text.count("\n") for path, text in texts.items() if _is_bounded(path)}
    modules = [path for path in texts if _is_module(path)]
    names = Counter(PurePosixPath(path).name for path in modules)
    classes = Counter(name for path in modules for name in _public_classes(texts[path]))
    del names["__init__.py"]
    return {
        "lines": {path: num for path, num in sorted(lines.items()) if num > MAX_LINES},
        "files": {name: num for name, num in sorted(names.items()) if num > 1},
        "classes": {name: num for name, num in sorted(classes.items()) if num > 1},
    }


def check_bounds(found: Bounds, bounds: Bounds, tables: Iterable[str] = ()) -> Iterator[str]:
    """Findings where `found` is above its bound, or where a bound is no longer needed. Tables may have any length."""
    for path, num in found["lines"].items():
        bound = bounds["lines"].get(path, MAX_LINES)
        if num > bound and path not in tables:
            yield f"{path}:1: {num} lines; split it by reason to change (limit {bound})"
    for kind, what in (("files", "files"), ("classes", "public classes")):
        for name, num in found[kind].items():
            bound = bounds[kind].get(name, 1)
            if num > bound:
                yield f"{BOUNDS}:1: {num} {what} are called {name} (limit {bound}); choose another name"
    for kind, of_kind in bounds.items():
        for name in sorted(of_kind.keys() - found[kind].keys()):
            yield f"{BOUNDS}:1: the bound of {name} is no longer needed; run {_COMMAND}"


def read_bounds(root: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Returns the bounds of a tree, and its tables."""
    path = root / BOUNDS
    if not path.is_file():
        return {"lines": {}, "files": {}, "classes": {}}, []
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    return {kind: read[kind] for kind in ("lines", "files", "classes")}, read["tables"]


def lowered(found: Bounds, bounds: Bounds) -> dict[str, dict[str, int]]:
    """Returns the bounds without those that are no longer needed, and none above what was found."""
    return {
        kind: {
            name: min(bound, found[kind][name])
            for name, bound in of_kind.items()
            if name in found[kind]
        }
        for kind, of_kind in bounds.items()
    }


def write_bounds(bounds: Bounds, tables: Iterable[str]) -> str:
    """Returns the text of the file of bounds."""
    parts = [_HEAD.format(limit=MAX_LINES), "tables = [\n"]
    parts += [f'  "{path}",\n' for path in tables]
    parts.append("]\n")
    for kind, of_kind in bounds.items():
        parts.append(f"\n[{kind}]\n")
        parts += [f'"{name}" = {bound}\n' for name, bound in of_kind.items()]
    return "".join(parts)


def _is_module(path: str) -> bool:
    is_ours = path.startswith(_OURS) and not path.startswith(_GENERATED)
    return is_ours and path.endswith(".py")


def _is_bounded(path: str) -> bool:
    return _is_module(path) or (path.startswith("cpp/") and path.endswith((".cpp", ".h")))


def _public_classes(text: str) -> list[str]:
    found = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [name for name in found if not name.startswith("_")]


def main() -> int:
    """Lowers the bounds of this repository."""
    paths = [*ROOT.glob("src/weft/**/*.py"), *ROOT.glob("cpp/**/*.cpp"), *ROOT.glob("cpp/**/*.h")]
    found = measure({path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths})
    bounds, tables = read_bounds(ROOT)
    (ROOT / BOUNDS).write_text(write_bounds(lowered(found, bounds), tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
