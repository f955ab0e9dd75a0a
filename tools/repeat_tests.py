"""`make test-repeat`: finds tests that fail by chance. Runs the changed tests and a sample of the others many times.

Each round has another order of tests, on a machine that busy processes keep loaded. The list at the end has every
test that failed at least once, with the seeds of its rounds and a command that runs such a round again.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BASES = ("origin/main", "main")
_IMPORT = re.compile(r"^(?:from|import) (tests(?:\.\w+)*)(?: import ([\w, ]+))?", re.MULTILINE)
_ALL_PASSED, _SOME_FAILED, _NOTHING_RAN = 0, 1, 5
# Computes until its parent has ended or so many seconds have passed.
_BUSY = """
import os, sys, time
parent, ends_at = os.getppid(), time.monotonic() + float(sys.argv[1])
while os.getppid() == parent and time.monotonic() < ends_at:
    sum(range(100_000))
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of all chosen modules in the order of a seed."""

    seed: int
    failed: frozenset[str]
    has_crashed: bool = False


def main() -> int:
    """1 if a test failed at least once."""
    options = _options().parse_args()
    modules = options.paths or choose(options.base or find_base(), options.sample, options.seed)
    if not modules:
        print("no test to repeat")
        return 0
    print(f"{len(modules)} modules, {options.times} rounds: {' '.join(modules)}", flush=True)
    ends_at = time.monotonic() + options.minutes * 60
    with loaded(options.load, options.minutes * 60):
        rounds = list(_rounds(modules, options, ends_at))
    print(summary(rounds, modules), flush=True)
    return int(any(one.failed or one.has_crashed for one in rounds))


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="make test-repeat", description=__doc__)
    options.add_argument(
        "--base", help="git ref; tests changed since then run (merge base of main)"
    )
    options.add_argument("--times", type=int, default=20, help="rounds (default %(default)s)")
    options.add_argument(
        "--sample", type=int, default=20, help="other modules (default %(default)s)"
    )
    options.add_argument("--seed", type=int, default=0, help="of the sample and the first round")
    options.add_argument("--load", type=int, default=15, help="load average to reach (%(default)s)")
    options.add_argument("--minutes", type=float, default=60, help="no round starts after these")
    options.add_argument("--workers", default="auto", help="processes of pytest; 0 runs in one")
    options.add_argument("paths", nargs="*", help="these tests instead of the changed ones")
    return options


# -- which tests ----------------------------------------------------------------------------------


def find_base() -> str:
    """The commit at which this branch left main."""
    for ref in _BASES:
        found = _git("merge-base", "HEAD", ref, is_strict=False).strip()
        if found:
            return found
    sys.exit(f"none of {', '.join(_BASES)} is there: name a commit with --base")


def choose(base: str, num_sampled: int, seed: int) -> list[str]:
    """Changed test modules, then a sample of the others."""
    names = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    changed = changed_modules(set(names.split()), texts)
    others = [name for name in texts if is_test_module(name) and name not in changed]
    sampled = random.Random(seed).sample(others, min(num_sampled, len(others)))
    return [*changed, *sorted(sampled)]


def changed_modules(changed: Collection[str], texts: Mapping[str, str]) -> list[str]:
    """Test modules among `changed`, and those that import a changed module of `tests`."""
    return [
        name
        for name, text in texts.items()
        if is_test_module(name)
        and (name in changed or not imported_files(text).isdisjoint(changed))
    ]


def is_test_module(name: str) -> bool:
    """Whether pytest collects tests from the file."""
    return Path(name).name.startswith("test_")


def imported_files(text: str) -> set[str]:
    """Files of `tests` that a module imports, by name."""
    found = set()
    for module, names in _IMPORT.findall(text):
        path = module.replace(".", "/")
        found |= {f"{path}.py", *(f"{path}/{name.strip()}.py" for name in names.split(","))}
    return found


def _git(*arguments: str, is_strict: bool = True) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if is_strict and done.returncode:
        sys.exit(done.stderr)
    return done.stdout if done.returncode == 0 else ""


# -- running them ---------------------------------------------------------------------------------


@contextmanager
def loaded(load: float, most_s: float) -> Iterator[None]:
    """Busy processes in the block, as many as the load average lacks. They end with this process at the latest."""
    lacking = max(0, round(load - os.getloadavg()[0]))
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(most_s)], stdin=subprocess.DEVNULL)
        for _ in range(lacking)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def _rounds(modules: Sequence[str], options: argparse.Namespace, ends_at: float) -> Iterator[Round]:
    for number in range(options.times):
        if time.monotonic() > ends_at:
            print(f"{number} rounds fit into {options.minutes:g} minutes")
            return
        yield run_round(modules, options.seed + number, options.workers)


def run_round(modules: Sequence[str], seed: int, workers: str) -> Round:
    """Run the modules once; pytest's own lines are shown only where a test failed."""
    with tempfile.TemporaryDirectory() as directory:
        failures = Path(directory, "failures")
        command = [*command_of(modules, seed, workers), "--failures-to", str(failures)]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        failed = frozenset(failures.read_text().split("\n")) - {""} if failures.exists() else ()
    one = Round(seed, frozenset(failed), _has_crashed(done.returncode, failed))
    print(f"seed {seed}: {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    if failed or one.has_crashed:
        print(done.stdout[-20_000:], done.stderr[-2000:], sep="\n", flush=True)
    return one


def command_of(modules: Sequence[str], seed: int, workers: str) -> list[str]:
    """Pytest for one round."""
    options = ["-q", "-p", "tools.shuffled", "--shuffle-seed", str(seed), "-n", workers]
    return [sys.executable, "-m", "pytest", *options, *modules]


def _has_crashed(status: int, failed: Collection[str]) -> bool:
    if status == _SOME_FAILED:
        return not failed
    return status not in (_ALL_PASSED, _NOTHING_RAN)


def summary(rounds: Sequence[Round], modules: Sequence[str]) -> str:
    """Tests that failed, most often first, and how to run such a round again."""
    seeds_by_test: dict[str, list[int]] = defaultdict(list)
    for one in rounds:
        for test in one.failed or (("(pytest itself)",) if one.has_crashed else ()):
            seeds_by_test[test].append(one.seed)
    if not seeds_by_test:
        return f"no test failed in {len(rounds)} rounds"
    lines = [
        f"{len(seeds)} of {len(rounds)}: {test} (seeds {', '.join(map(str, seeds))})"
        for test, seeds in sorted(seeds_by_test.items(), key=lambda item: -len(item[1]))
    ]
    first_seed = min(min(seeds) for seeds in seeds_by_test.values())
    again = " ".join(["python", *command_of(modules, first_seed, "0")[1:]])
    return "\n".join([*lines, f"a round again, with its seed: {again}"])


if __name__ == "__main__":
    sys.exit(main())
