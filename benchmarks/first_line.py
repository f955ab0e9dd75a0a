"""From the start of a command to what it says first: `weft serve` on a terminal, and every `--help`.

    python benchmarks/first_line.py [--repetitions 15]

Each in turns with an interpreter that prints one line and ends, which no program of Python can be quicker
than. Prints Markdown, in milliseconds.
"""

import argparse
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from weft.cli.help import PAGES

WEFT = str(Path(sys.executable).with_name("weft"))
BARE = (sys.executable, "-c", "print(1)")
SERVE = (WEFT, "serve", "--no-grpc", "--port=0")


def first_line_ms(argv: Sequence[str]) -> float:
    """On a terminal, until the first byte; what goes on afterwards is ended."""
    ours, theirs = pty.openpty()
    started = time.perf_counter()
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.read(ours, 1)
        took_ms = 1e3 * (time.perf_counter() - started)
        process.kill()
    os.close(ours)
    return took_ms


def whole_ms(argv: Sequence[str]) -> float:
    """Until it has ended."""
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (time.perf_counter() - started)


def row(name: str, take: Callable[[Sequence[str]], float], argv: Sequence[str], times: int) -> str:
    """A command beside the bare interpreter."""
    pairs = [(take(argv), take(BARE)) for _ in range(times)]
    own, bare = zip(*pairs, strict=True)
    return f"| {name} | {median(own):.0f} | {min(own):.0f} to {max(own):.0f} | {median(bare):.0f} |"


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    times = parser.parse_args().repetitions
    print(f"Load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}.\n")
    print("| | median, ms | spread | bare interpreter |\n|---|---|---|---|")
    print(row("`weft serve`, first line", first_line_ms, SERVE, times))
    for words in json.loads(PAGES.read_bytes()):
        argv = (WEFT, *words.split(), "--help")
        print(row(f"`weft {words} --help`".replace("  ", " "), whole_ms, argv, times), flush=True)


if __name__ == "__main__":
    main()
