"""What `pip install .` without extras puts on a disk, by package.

    python benchmarks/install_size.py [--site DIRECTORY]

Installs the checkout into an environment of its own (the C++ core takes minutes to compile), or takes the site-packages
given. Sizes are of files, with the bytecode that pip writes; pip itself does not count. Prints Markdown.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
OURS = "weft-serve"
_TOOLS = {"pip", "setuptools"}


class Package(NamedTuple):
    """What one distribution takes, in bytes, and what it needs here."""

    compiled: int
    bytecode: int
    rest: int
    needs: frozenset[str]


def install(directory: Path) -> Path:
    """The site-packages of a new environment with this checkout in it."""
    venv.create(directory, with_pip=True)
    subprocess.run(
        [directory / "bin" / "python", "-m", "pip", "install", "--quiet", ROOT], check=True
    )
    paths = {"base": str(directory), "platbase": str(directory)}
    return Path(sysconfig.get_path("purelib", "venv", paths))


def packages_in(site: Path) -> dict[str, Package]:
    """By name, without the installer's own."""
    found = {
        canonicalize_name(one.metadata["Name"]): one for one in distributions(path=[str(site)])
    }
    return {name: _measure(one) for name, one in found.items() if name not in _TOOLS}


def _measure(distribution: Distribution) -> Package:
    sizes = {"compiled": 0, "bytecode": 0, "rest": 0}
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        is_library = ".so" in path.suffixes or path.suffix == ".dylib"
        kind = "compiled" if is_library else "bytecode" if path.suffix == ".pyc" else "rest"
        sizes[kind] += path.stat().st_size if path.exists() else 0
    needs = map(Requirement, distribution.requires or ())
    here = (need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""}))
    return Package(**sizes, needs=frozenset(canonicalize_name(need.name) for need in here))


def reached(packages: Mapping[str, Package], starts: Iterable[str]) -> set[str]:
    """The packages that these need, themselves included."""
    left, found = list(starts), set[str]()
    while left:
        name = left.pop()
        if name in packages and name not in found:
            found.add(name)
            left += packages[name].needs
    return found


def main() -> None:
    """Print two tables: by package, and what would leave with each that we name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--site", type=Path, help="a site-packages to measure, in place of a new one"
    )
    site = parser.parse_args().site
    with tempfile.TemporaryDirectory() as directory:
        packages = packages_in(site or install(Path(directory)))
    if OURS not in packages:
        sys.exit(f"{OURS} is not installed there")
    needs = packages[OURS].needs
    kept = {OURS} | reached(packages, needs)
    table = {name: _row(packages, {name}) for name in kept} | {"all": _row(packages, kept)}
    print("| package | MB | libraries | bytecode | rest |\n| --- | --- | --- | --- | --- |")
    for name, sizes in sorted(table.items(), key=lambda row: row[1], reverse=True):
        print(f"| {name} | {' | '.join(f'{size / 1e6:.1f}' for size in sizes)} |")
    print("\n| if Weft did without | MB less | what leaves |\n| --- | --- | --- |")
    leaving = {name: kept - {OURS} - reached(packages, needs - {name}) for name in needs & kept}
    for name, gone in sorted(leaving.items(), key=lambda one: _row(packages, one[1]), reverse=True):
        less = _row(packages, gone)[0] / 1e6
        print(f"| {name} | {less:.1f} | {', '.join(sorted(gone)) or 'nothing: others need it'} |")


def _row(packages: Mapping[str, Package], names: Iterable[str]) -> tuple[int, ...]:
    """The columns of these together."""
    sums = [
        sum(sizes) for sizes in zip((0, 0, 0), *(packages[name][:3] for name in names), strict=True)
    ]
    return sum(sums), *sums


if __name__ == "__main__":
    main()
