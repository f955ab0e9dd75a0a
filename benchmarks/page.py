"""What the page costs an engine at work, open in three browsers: tokens a second and processor time, in turns.

    python benchmarks/page.py [--model NAME] [--rounds 10] [--seconds 8] [--browsers 3] [--chromium]

Each browser's requests are those of the page's engine view: /load and /requests every second, /metrics every
fifth. They come from a process of their own; with --chromium they are real windows, whose own processor
time then takes its share of the machine. Prints Markdown: medians of the rounds' ratios, with and without.

The first table can be compared on a busy machine: there the engine holds its requests and takes no step (`/pause`, mode
keep), so that all its processor time is for those who look. That is what its steps would have lost.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import serve

NUM_CLIENTS = 32
TOTALS_EVERY = 5
START_S = 120.0
CONTROL_KEY = "control"
GENERATED = "vllm:generation_tokens_total{"


@dataclass(frozen=True, slots=True)
class Usage:
    """What was generated up to a moment, and what that took in processor time."""

    at: float
    num_tokens: float
    front_s: float
    engine_s: float

    def since(self, other: "Usage") -> tuple[float, float, float]:
        """Tokens a second, and microseconds of each process for a token."""
        num_tokens = self.num_tokens - other.num_tokens
        return (
            num_tokens / (self.at - other.at),
            1e6 * (self.front_s - other.front_s) / num_tokens,
            1e6 * (self.engine_s - other.engine_s) / num_tokens,
        )


def running_s(process: psutil.Process) -> float:
    """Seconds that its threads have run, to the nanosecond."""
    files = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


class Server:
    """A `weft serve`, and what it has done so far."""

    def __init__(self, served: serve.Server) -> None:
        self.url = f"http://127.0.0.1:{served.http_port}"
        self._front = psutil.Process(served.pid)
        (self._engine,) = self._front.children()

    def usage(self) -> Usage:
        """Until now."""
        text = httpx2.get(f"{self.url}/metrics", timeout=START_S).text
        num_tokens = sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(GENERATED)
        )
        front_s, engine_s = running_s(self._front), running_s(self._engine)
        return Usage(time.monotonic(), num_tokens, front_s, engine_s)

    def spent_ms(self, seconds: float) -> tuple[float, float]:
        """What front and engine run in a second, on an average of so many."""
        before = [running_s(self._front), running_s(self._engine)]
        time.sleep(seconds)
        front, engine = (
            1e3 * (running_s(one) - was) / seconds
            for one, was in zip((self._front, self._engine), before, strict=True)
        )
        return front, engine

    @contextmanager
    def holding(self) -> Iterator[None]:
        """No step is taken, and every request stays where it is."""
        headers = {"authorization": f"Bearer {CONTROL_KEY}"}
        with httpx2.Client(base_url=self.url, headers=headers, timeout=START_S) as client:
            client.post("/pause?mode=keep&clear_cache=false").raise_for_status()
            yield
            client.post("/resume").raise_for_status()


@contextmanager
def child(*argv: str) -> Iterator[None]:
    """This program in another process, in the part that the arguments name, until the end."""
    with subprocess.Popen([sys.executable, __file__, *argv]) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def looking(url: str, num_browsers: int, *, is_real: bool) -> Iterator[None]:
    """The engine's view, open so many times."""
    if not is_real:
        with child("--browse", url, "--browsers", str(num_browsers)):
            yield
        return
    from tests.web.page.browser import browsing  # noqa: PLC0415 - for --chromium alone

    with ExitStack() as stack:
        for _ in range(num_browsers):
            stack.enter_context(browsing()).open(f"{url}/#engine")
        yield


async def browse(url: str, num_browsers: int) -> None:
    """What so many browsers request, each when its own turn comes."""
    async with asyncio.TaskGroup() as group:
        for number in range(num_browsers):
            group.create_task(_poll(url, number / num_browsers))


async def _poll(url: str, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    async with httpx2.AsyncClient(base_url=url, timeout=START_S) as client:
        for turn in range(10**9):
            await asyncio.gather(client.get("/load"), client.get("/requests"))
            if turn % TOTALS_EVERY == 0:
                await client.get("/metrics")
            await asyncio.sleep(1.0)


async def generate(url: str) -> None:
    """Requests without an end, so many at once."""
    body = {"model": "m", "prompt": list(range(5, 69)), "max_tokens": 256, "ignore_eos": True}
    limits = httpx2.Limits(max_connections=NUM_CLIENTS)

    async def go_on(client: httpx2.AsyncClient, seed: int) -> None:
        while True:
            await client.post("/v1/completions", json=body | {"seed": seed})

    async with (
        httpx2.AsyncClient(base_url=url, timeout=START_S, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        for seed in range(NUM_CLIENTS):
            group.create_task(go_on(client, seed))


def measure_held(server: Server, arguments: argparse.Namespace) -> None:
    """The first table."""
    with server.holding():
        time.sleep(1.0)
        without = server.spent_ms(arguments.seconds)
        with looking(server.url, arguments.browsers, is_real=arguments.chromium):
            time.sleep(3.0)
            seen = server.spent_ms(arguments.seconds)
        states = httpx2.get(f"{server.url}/requests", timeout=START_S).json()["engines"][0]
    print(f"Held: {len(states['requests'])} requests, {states['num_held_blocks']} blocks.\n")
    print("| processor time, ms a second | without | with |\n|---|---|---|")
    for name, one, other in zip(("front", "engine"), without, seen, strict=True):
        print(f"| {name} | {one:.2f} | {other:.2f} |")
    print(flush=True)


def measure(server: Server, arguments: argparse.Namespace) -> list[list[float]]:
    """The ratios of each round: with the page over without it, which of them first by turns."""

    def one(num_browsers: int) -> tuple[float, float, float]:
        with ExitStack() as stack:
            if num_browsers:
                stack.enter_context(looking(server.url, num_browsers, is_real=arguments.chromium))
            time.sleep(2.0)  # until it polls
            before = server.usage()
            time.sleep(arguments.seconds)
            return server.usage().since(before)

    rounds = []
    for turn in range(arguments.rounds):
        order = (0, arguments.browsers) if turn % 2 else (arguments.browsers, 0)
        found = {num_browsers: one(num_browsers) for num_browsers in order}
        ratios = [a / b for a, b in zip(found[arguments.browsers], found[0], strict=True)]
        print(json.dumps({"without": found[0], "ratios": ratios}), file=sys.stderr, flush=True)
        rounds.append([*ratios, *found[0]])
    return rounds


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=serve.MODELS["smollm2-135m"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--browsers", type=int, default=3)
    parser.add_argument("--chromium", action="store_true")
    parser.add_argument("--browse", help=argparse.SUPPRESS)
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.browse:
        asyncio.run(browse(arguments.browse, arguments.browsers))
    if arguments.generate:
        asyncio.run(generate(arguments.generate))
    with serve.server(arguments.model, "--control-api-key", CONTROL_KEY) as served:
        server = Server(served)
        with child("--generate", server.url):
            time.sleep(5.0)
            measure_held(server, arguments)
            columns = list(zip(*measure(server, arguments), strict=True))
    names = ("tokens a second", "µs of the front a token", "µs of the engine a token")
    print(f"Load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}.\n")
    print("| | without | with, over without | spread |\n|---|---|---|---|")
    for name, ratios, without in zip(names, columns[:3], columns[3:], strict=True):
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"| {name} | {median(without):.1f} | {median(ratios):.3f} | {spread} |")


if __name__ == "__main__":
    main()
