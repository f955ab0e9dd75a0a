"""`python -m tests.fuzz [--seconds 3600] [--seed 1] [NAME ...]`: each parser for so long, with other inputs each time.

An input that fails is written to the working directory, for a test of its own.
"""

import argparse
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.parsers import Parser, parsers

_NUM_AT_ONCE = 100


def main() -> int:
    """The number of parsers that failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="for each parser")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("names", nargs="*", metavar="NAME")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        known = parsers(Path(directory))
        if unknown := set(chosen.names) - set(known):
            options.error(f"no such parser: {', '.join(unknown)}; there are {', '.join(known)}")
        names = chosen.names or list(known)
        return sum(_fails(name, known[name], chosen.seed, chosen.seconds) for name in names)


def _fails(name: str, parser: Parser, first_seed: int, seconds: float) -> bool:
    ends_at = time.monotonic() + seconds
    for seed in count(first_seed):
        failure = fuzz(parser, seed, _NUM_AT_ONCE)
        if failure is not None:
            path = Path(f"{name.replace(' ', '_')}-{seed}.bin")
            path.write_bytes(failure.data)
            print(f"{name}: failed, seed {seed}, input in {path}\n{failure.reason}")
            return True
        if time.monotonic() > ends_at:
            print(f"{name}: {(seed - first_seed + 1) * _NUM_AT_ONCE} inputs")
            return False
    raise AssertionError("seeds have no end")


if __name__ == "__main__":
    sys.exit(main())
