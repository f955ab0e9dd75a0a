"""From process start to the first token, and the memory that is held then.

    python benchmarks/start.py [--shapes smollm2-135m] [--ways HTTP gRPC offline] [--repetitions 5] [--packed]
        [--gguf Q4_0]

With `--gguf` the shape's GGUF file is served. With `--packed`:
first starts in turns with those that find packed weights, and the tokenizer tried out.
Prints Markdown. A machine that is busy makes times longer, and processor time little.
"""

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers.checkpoints import SHAPE_BY_NAME, SHAPES, checkpoint
from benchmarks.peers.engines import gguf_file
from benchmarks.peers.environments import LLAMA, ROOT
from benchmarks.peers.served import free_port
from weft.compute.backends import BACKENDS, choose
from weft.core.config.engine_options import EngineOptions
from weft.model.open import open_model
from weft.pb.vllm_engine_pb2 import GenerateRequest, SamplingParams, TokenizedInput
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

HERE = Path(__file__).parent
MAX_MODEL_LEN = 8192
PROMPT = list(range(5, 5 + 16))
CACHE = ROOT.parent / "start" / "cache"  # of packed weights; none of the user's
PACKED_BYTES = {False: "0", True: str(8 << 30)}
POLL_S = 0.005
LIMIT_S = 120.0
SETTLE_S = 0.5
# What a start is promised to take: resident bytes over those of weights and KV in use.
SHARE, BASE_BYTES = 1.1, 200_000_000


@dataclass(frozen=True, slots=True)
class Process:
    """One process when the first token was there, or shortly after."""

    name: str
    cpu_s: float
    peak_bytes: int
    rss_bytes: int
    pss_bytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds to each mark, and the processes then."""

    seconds_by_mark: dict[str, float]
    processes: list[Process]


def processes(root: int) -> list[Process]:
    """The process and its children. Processor time is of the moment; memory of half a second later."""
    family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    cpu_s = [sum(process.cpu_times()[:2]) for process in family]
    time.sleep(SETTLE_S)
    return [
        Process(_name(process), seconds, *_memory(process.pid))
        for process, seconds in zip(family, cpu_s, strict=True)
    ]


def _name(process: psutil.Process) -> str:
    argv = process.cmdline()
    return "engine" if "weft.engine.process" in argv else "program"


def _memory(pid: int) -> tuple[int, int, int]:
    """The peak, what is resident, and the proportional share of it."""
    rollup, status = _fields(f"/proc/{pid}/smaps_rollup"), _fields(f"/proc/{pid}/status")
    return status["VmHWM"], rollup["Rss"], rollup["Pss"]


def _fields(path: str) -> dict[str, int]:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


# -- the ways in ----------------------------------------------------------------------------------


def over_http(model: Path, *, is_packed: bool = False) -> Start:
    """`weft serve`, and a request the moment that it is ready."""
    with _serving(model, is_packed) as (process, http_port, _, marks):
        marks["ready"] = _until(process, lambda: _get(http_port, "/readyz"))
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 1, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=LIMIT_S)
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        while not connection.getresponse().readline().startswith(b"data: {"):
            pass
        marks["first token"] = time.monotonic()
        return Start(marks, processes(process.pid))


def over_grpc(model: Path, *, is_packed: bool = False) -> Start:
    """The same; the client asks from the start, and gRPC itself waits until somebody listens."""
    patience = [
        ("grpc.initial_reconnect_backoff_ms", 20),
        ("grpc.min_reconnect_backoff_ms", 20),
        ("grpc.max_reconnect_backoff_ms", 20),
    ]
    request = GenerateRequest(
        tokenized=TokenizedInput(input_ids=PROMPT),
        sampling_params=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, n=1),
        stream=True,
    )
    with (
        _serving(model, is_packed) as (process, _, grpc_port, marks),
        grpc.insecure_channel(f"127.0.0.1:{grpc_port}", patience) as channel,
    ):
        stub = VllmEngineStub(channel)
        next(stub.Generate(request, wait_for_ready=True, timeout=LIMIT_S))
        marks["first token"] = time.monotonic()
        return Start(marks, processes(process.pid))


def offline(model: Path, *, is_packed: bool = False) -> Start:
    """A program that imports Weft, loads the model and generates."""
    argv = [str(HERE / "start_offline.py"), str(model), str(MAX_MODEL_LEN), json.dumps(PROMPT)]
    return _program([sys.executable, *argv, PACKED_BYTES[is_packed]])


def llama(model: Path, *, is_packed: bool = False) -> Start:
    """A program that does the same with llama.cpp, of a GGUF file; that of a checkpoint must be there."""
    file = model if model.is_file() else ROOT / f"{model.name}-bf16.gguf"
    argv = [str(HERE / "peers" / "first_token_llama.py"), str(file), json.dumps(PROMPT)]
    return _program([str(LLAMA.python), *argv])


WAYS: dict[str, Callable[..., Start]] = {
    "HTTP": over_http,
    "gRPC": over_grpc,
    "offline": offline,
    "llama.cpp": llama,
}


def _program(argv: Sequence[str]) -> Start:
    started = time.monotonic()
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{argv[1]} did not start")
        marks: dict[str, float] = json.loads(line)
        found = processes(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    return Start({mark: at - started for mark, at in marks.items()}, found)


def _environment() -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(CACHE)}


def turn(way: str, model: Path, *, is_packed: bool) -> Start:
    """A first start of that model, or one after a start that had the time to keep what it made."""
    shutil.rmtree(CACHE, ignore_errors=True)
    if is_packed:
        with _serving(model, is_packed) as (process, port, _, _):
            _until(process, lambda: _get(port, "/readyz"))
            _until(process, lambda: any(CACHE.glob("weft/packed/*.packed")))
    return WAYS[way](model, is_packed=is_packed)


@contextmanager
def _serving(
    model: Path, is_packed: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int, int, "Marks"]]:
    http_port, grpc_port = free_port(), free_port()
    argv = [sys.executable, "-m", "weft.cli.main", "serve", str(model), f"--port={http_port}"]
    argv += [f"--grpc-port={grpc_port}", "--served-model-name=m", "--log-level=error"]
    argv += [f"--packed-cache-bytes={PACKED_BYTES[is_packed]}"]
    marks = Marks()
    with subprocess.Popen(
        [*argv, f"--max-model-len={MAX_MODEL_LEN}"], stdout=subprocess.DEVNULL, env=_environment()
    ) as process:
        try:
            marks["live"] = _until(process, lambda: _get(http_port, "/livez"))
            yield process, http_port, grpc_port, marks
        finally:
            process.terminate()


class Marks(dict[str, float]):
    """Seconds since it was made; what is put in is a reading of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def __setitem__(self, mark: str, at: float) -> None:
        super().__setitem__(mark, at - self._started)


def _until(process: subprocess.Popen[bytes], is_so: Callable[[], bool]) -> float:
    """When it was so."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit("the server did not start")
        time.sleep(POLL_S)
    return time.monotonic()


def _get(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    with suppress(OSError):
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    return False


# -- tables ---------------------------------------------------------------------------------------

MARKS = ("live", "imported", "loaded", "ready", "first token")
HEAD = (
    f"| way | {', s | '.join(MARKS)}, s | CPU, s | peaks, MB | settled, MB | settled PSS, MB |\n"
    f"|{'---|' * (len(MARKS) + 5)}"
)


def row(way: str, starts: Sequence[Start]) -> str:
    """Medians, with what the processes have in this order: the program that was started, the engine."""
    cells = [
        f"{median(s.seconds_by_mark[m] for s in starts):.2f}"
        if m in starts[0].seconds_by_mark
        else ""
        for m in MARKS
    ]
    cells[-1] += f" ({_spread([s.seconds_by_mark['first token'] for s in starts])})"
    for scale, digits, name in (
        (1.0, 2, "cpu_s"),
        (1e-6, 0, "peak_bytes"),
        (1e-6, 0, "rss_bytes"),
        (1e-6, 0, "pss_bytes"),
    ):
        by_process = zip(*([getattr(p, name) for p in s.processes] for s in starts), strict=True)
        values = [median(values) * scale for values in by_process]
        parts = " + ".join(f"{value:.{digits}f}" for value in values)
        total = f"{sum(values):.{digits}f}"
        cells.append(total if len(values) == 1 else f"{parts} = {total}")
    return f"| {way} | {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}–{max(values):.2f}"


def needed_bytes(model: Path) -> int:
    """Weights, and KV of the prompt's blocks."""
    options = EngineOptions(model=str(model))
    opened = open_model(options.model)
    compute = choose(options, opened.card)
    card = BACKENDS[compute.compute].sized(opened, compute).card
    return card.weight_bytes + 2 * 16 * card.kv_bytes_per_token


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPE_BY_NAME, default=[one.name for one in SHAPES]
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["HTTP", "gRPC", "offline"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--gguf", choices=("BF16", "Q4_0", "Q4_K_M", "Q8_0"), metavar="TYPE")
    arguments = parser.parse_args()
    print(f"Load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}.")
    for name in arguments.shapes:
        kind = arguments.gguf
        model = gguf_file(SHAPE_BY_NAME[name], kind) if kind else checkpoint(name)
        needed = needed_bytes(model)
        print(
            f"\n## {name}\n\nWeights and KV in use {needed / 1e6:.0f} MB; 1.1 times that and 200 MB: "
            f"{(SHARE * needed + BASE_BYTES) / 1e6:.0f} MB.\n\n{HEAD}"
        )
        kinds = (False, True) if arguments.packed else (False,)
        for way in arguments.ways:
            WAYS[way](model)  # so that the files are in memory
            turns = [
                [turn(way, model, is_packed=is_packed) for is_packed in kinds]
                for _ in range(arguments.repetitions)
            ]
            for is_packed, starts in zip(kinds, zip(*turns, strict=True), strict=True):
                print(row(f"{way}, again" if is_packed else way, starts), flush=True)


if __name__ == "__main__":
    main()
