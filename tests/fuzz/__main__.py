"""`python -m tests.fuzz [--seconds 3600] [--log FILE] [NAME ...]`: fuzzes the parsers with new inputs each time.

The parsers take turns of a minute, so a run that is ended early has tried all of them. An input that fails is
written to the working directory, for a test of its own. docs/fuzzing.md has the table that `--table` prints.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.log import Log
from tests.fuzz.parsers import Parser, parsers

_NUM_AT_ONCE = 100
_TURN_S = 60.0


def main() -> int:
    """The number of parsers that failed."""
    options = _options()
    chosen = options.parse_args()
    log = Log(chosen.log, first_seed=chosen.seed)
    if chosen.table:
        print(log.table())
        return 0
    with tempfile.TemporaryDirectory() as directory:
        known = parsers(Path(directory))
        if unknown := set(chosen.names) - set(known):
            options.error(f"no such parser: {', '.join(unknown)}; there are {', '.join(known)}")
        names = chosen.names or list(known)
        return _fuzz_in_turns({name: known[name] for name in names}, chosen.seconds, log)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="for each parser")
    options.add_argument(
        "--seed", type=int, default=0, help="first seed of a parser not in the log"
    )
    options.add_argument(
        "--log", type=Path, help="JSON file with the time of each parser; a run adds to it"
    )
    options.add_argument("--table", action="store_true", help="only print the log as a table")
    options.add_argument("names", nargs="*", metavar="NAME")
    return options


def _fuzz_in_turns(chosen: Mapping[str, Parser], seconds: float, log: Log) -> int:
    left_s = dict.fromkeys(chosen, seconds)
    failed = set()
    while left_s:
        for name in list(left_s):
            turn_s = min(_TURN_S, left_s[name])
            if _fails(name, chosen[name], turn_s, log):
                failed.add(name)
            left_s[name] -= turn_s
            if name in failed or left_s[name] <= 0:
                del left_s[name]
    return len(failed)


def _fails(name: str, parser: Parser, seconds: float, log: Log) -> bool:
    began = time.process_time()
    while (spent_s := time.process_time() - began) < seconds:
        seed = log.next_seed(name)
        failure = fuzz(parser, seed, _NUM_AT_ONCE)
        log.add(name, time.process_time() - began - spent_s, _NUM_AT_ONCE)
        if failure is not None:
            path = Path(f"{name.replace(' ', '_')}-{seed}.bin")
            path.write_bytes(failure.data)
            print(f"{name}: failed, seed {seed}, input in {path}\n{failure.reason}", flush=True)
            return True
    log.write()
    print(f"{name}: {log.describe(name)}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
