"""Check that tests name only what there is: our modules and their members, attributes, and arguments of functions.

mypy reads no tests: most have no types, and what they make up on purpose would be thousands of errors. Yet a name that
was changed in the code, and not in a test, fails hours later. ty reads all tests within seconds; of what it finds, this
prints what is about our own names, and exits 1 if there is any.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = (
    "import-not-found",
    "missing-module-member",
    "missing-attribute",
    "missing-argument",
    "unknown-argument",
    "too-many-positional-arguments",
)
OWN_PACKAGES = ("src/weft", "tests", "tools", "benchmarks")
# Objects of these have more than the type says, as tests know: which runner or client, what flags, what message.
OPEN_TYPES = {
    *(
        "Channel",
        "EngineClient",
        "EppOptions",
        "LoadSource",
        "Message",
        "Metric",
        "Queue",
        "Router",
    ),
    *("Runner", "ServeOptions", "Server", "Values", "WeftError", "Written"),
}
# What a finding is about: the type, the module, or the function that is called.
_SUBJECT = re.compile(
    r"(?:type|[Mm]odule|function|method|(?:parameters?\b.*|arguments) (?:of|to)) `([\w.]+)"
)
_DEFINITION = re.compile(r"^(?:class|def|async def) (\w+)", re.MULTILINE)


def main() -> int:
    """Prints the findings in all tests; returns the exit status."""
    found = list(findings(run_ty(["tests"]), own_names()))
    print("\n".join(found) or "names in tests: clean")
    return 1 if found else 0


def run_ty(paths: Iterable[str]) -> list[str]:
    """What ty says of these files, a line a finding."""
    command = [
        str(Path(sys.executable).with_name("ty")), "check", "--output-format", "concise",
        "--python", sys.prefix, "--extra-search-path", "src",
        "--ignore", "all", *(f"--error={rule}" for rule in RULES), *paths,
    ]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode > 1:
        raise SystemExit(result.stderr)
    return result.stdout.splitlines()


def own_names() -> set[str]:
    """Our packages, and the functions and classes of their modules."""
    paths = (path for package in OWN_PACKAGES for path in (ROOT / package).rglob("*.py"))
    defined = {name for path in paths for name in _DEFINITION.findall(path.read_text())}
    return defined | {Path(package).name for package in OWN_PACKAGES}


def findings(lines: Iterable[str], own: set[str]) -> Iterator[str]:
    """The lines that are about one of our names."""
    for line in lines:
        subject = _SUBJECT.search(line)
        name = subject[1].partition(".")[0] if subject else ""
        if name in own and name not in OPEN_TYPES:
            yield line


if __name__ == "__main__":
    sys.exit(main())
