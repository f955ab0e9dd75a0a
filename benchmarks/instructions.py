"""Instructions of a server's front end, counted by callgrind: `python benchmarks/instructions.py --tree DIR`.

Counts do not depend on how busy the machine is, so that a difference of 1 % between two commits can be seen. Each line
is one job: 16 answers of 40 tokens by 8 streaming clients of an engine with a fixed pace, or of a group of such engines
(`--engines`). Needs valgrind.
"""

import argparse
import glob
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve import WAYS, load
from benchmarks.serve_load import Job

MODEL = "embedded:echo?itl_ms=100"  # slow enough for a front end that runs fifty times slower
START_S = 1500.0
TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def counted(tree: Path, out: Path, http: int, grpc: int, engines: int) -> Iterator[int]:
    """`weft serve` of the tree with so many engines under callgrind, which counts nothing yet; the pid."""
    tool = ["valgrind", "--tool=callgrind", "-q", "--instr-atstart=no", "--trace-children=no"]
    argv = ["-m", "weft.cli.main", "serve", MODEL, f"--port={http}", f"--grpc-port={grpc}"]
    limits = ["--max-model-len=2048", "--num-gpu-blocks-override=8192", "--log-level=error"]
    limits.append(f"--data-parallel-size={engines}")
    command = [*tool, f"--callgrind-out-file={out}", sys.executable, *argv, *limits]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    name = "--served-model-name=m"
    with subprocess.Popen([*command, name], env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wait_ready(server, http)
            yield server.pid
        finally:
            server.terminate()


def wait_ready(server: subprocess.Popen[bytes], http: int) -> None:
    """Return when the server is healthy."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("the server has ended")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/health", timeout=30) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(1)
    raise SystemExit("the server has not become ready")


def control(pid: int, *argv: str) -> None:
    """Tell callgrind to count, to begin at zero, or to write its counts."""
    command = ["callgrind_control", *argv, str(pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Count and print, a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--engines", type=int, default=1)
    given = parser.parse_args()
    http, grpc = free_port(), free_port()
    prompts = [[(31 * place + 7 * n) % 250 + 1 for place in range(16)] for n in range(16)]
    with tempfile.TemporaryDirectory() as scratch, load() as clients:
        out = Path(scratch) / "counts"
        with counted(given.tree, out, http, grpc, given.engines) as pid:
            control(pid, "-i", "on")
            for turn in range(given.turns + 1):  # the first one warms up
                for name, way in WAYS.items():
                    port = grpc if way == "grpc" else http
                    job = Job(way=way, port=port, model="m", prompts=prompts,
                              max_tokens=40, num_clients=8)  # fmt: skip
                    control(pid, "-z")
                    report = clients.run(job)
                    control(pid, "-d")
                    last = max(glob.glob(f"{out}.*"), key=os.path.getmtime)
                    found = TOTAL.search(Path(last).read_text(encoding="utf-8"))
                    if turn and found is not None:
                        each = int(found[1]) / report.num_tokens
                        print(f"{name}: {each:.0f} instructions a token", flush=True)


if __name__ == "__main__":
    main()
