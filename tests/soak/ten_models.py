"""Ten models on the memory of three, in one server: `python -m tests.soak.ten_models`.

Callers ask for models at random. No engine may be there twice, the memory of the engines must stay within the bound,
and every request must be answered. While a request waits for memory, each other model gets memory once at most: that is
the bound of fairness. Then the time of a swap is measured: a request for a model that is not in memory, while another
one must leave.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.busy import PATIENCE_S
from tests.cli.running import Server, running
from tests.model.checkpoints import CONFIG, write_checkpoint
from tests.soak.kills import MIB, engines_of

NUM_MODELS, NUM_IN_MEMORY, KV_MIB = 10, 3, 16
BODY = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
# A model has these bytes from the moment that memory is promised to it until it has ended.
MEMORY = re.compile(r'^weft:model_memory_bytes\{model_name="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """A request: its model, and when it was sent and answered."""

    name: str
    began: float
    ended: float


@dataclass
class Seen:
    """What a watcher saw of the engines: the most memory and the most processes at a time, and the models with memory
    of each look that began at a time.
    """

    rss_bytes: int = 0
    num_engines: int = 0
    asked: list[Asked] = field(default_factory=list)
    looks_at: list[float] = field(default_factory=list)
    having: list[set[str]] = field(default_factory=list)

    @property
    def waits_s(self) -> list[float]:
        """Seconds of each request."""
        return [one.ended - one.began for one in self.asked]

    def passed_by(self, request: Asked) -> Counter[str]:
        """How often each other model got memory while a request waited for that of its own."""
        first = bisect_left(self.looks_at, request.began)
        waited: Counter[str] = Counter()
        for place in range(first, len(self.having)):
            if request.name in self.having[place] and self.looks_at[place] < request.ended:
                return waited
            if place > first:
                waited.update(self.having[place] - self.having[place - 1])
        return Counter()  # its model was in memory

    def look(self, server: Server) -> None:
        """Look at the engines now."""
        rss_bytes = num_engines = 0
        for engine in engines_of(server.front):
            try:
                rss_bytes += engine.memory_info().rss
                num_engines += 1
            except psutil.NoSuchProcess:
                continue
        self.rss_bytes = max(self.rss_bytes, rss_bytes)
        self.num_engines = max(self.num_engines, num_engines)


@dataclass
class Models:
    """A server of ten models, and a client."""

    server: Server
    http: httpx2.AsyncClient
    size_bytes: int
    seen: Seen = field(default_factory=Seen)

    async def ask(self, name: str) -> str:
        """The answer of a model."""
        began = time.monotonic()
        response = await self.http.post("/v1/completions", json={"model": name, **BODY})
        response.raise_for_status()
        self.seen.asked.append(Asked(name, began, time.monotonic()))
        return str(response.json()["choices"][0]["text"])

    async def states(self) -> dict[str, dict[str, Any]]:
        """The models by name."""
        listed = json.loads((await self.http.get("/v1/models")).text)["data"]
        return {card["id"]: card for card in listed}

    async def watch(self) -> None:
        """Look at the engines, until cancelled."""
        while True:
            self.seen.look(self.server)
            began = time.monotonic()
            text = (await self.http.get("/metrics")).text
            having = {name for name, num_bytes in MEMORY.findall(text) if float(num_bytes)}
            self.seen.having.append(having)
            self.seen.looks_at.append(began)
            await asyncio.sleep(0.02)


def make_model(directory: Path, hidden: int, layers: int) -> Path:
    """A checkpoint of that size."""
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": hidden // 16, "num_key_value_heads": hidden // 16}
    return write_checkpoint(directory, {**CONFIG, **sizes, **heads})


@asynccontextmanager
async def ten_models(hidden: int, layers: int, min_stay: str = "0s") -> AsyncIterator[Models]:
    """The server; its bound is three times the size that it reports of a model."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = make_model(scratch / "model", hidden, layers)
        given = [f"m{number}={path}" for number in range(NUM_MODELS)]
        flags = ("--no-grpc", "--kv-cache-bytes", f"{KV_MIB}MiB", "--num-threads", "1")
        with running(*given, *flags, "--models-memory", "8GiB") as server:
            cards = json.loads(server.get("/v1/models"))["data"]
            size_bytes = max(card["size_bytes"] for card in cards)
        bound = ("--models-memory", str(NUM_IN_MEMORY * size_bytes), "--models-min-stay", min_stay)
        server = stack.enter_context(running(*given, *flags, *bound, "--models-wait", "600s"))
        async with httpx2.AsyncClient(base_url=server.http, timeout=2 * PATIENCE_S) as http:
            yield Models(server, http, size_bytes)


async def crowd(models: Models, num_requests: int, num_callers: int, seed: int) -> None:
    """Callers that ask for models at random. Raises on a wrong answer, if the engines are beyond the bound, and if a
    model gets memory twice while a request waits for another one.
    """
    names = [f"m{number}" for number in range(NUM_MODELS)]
    dice = random.Random(seed)
    expected = await models.ask(names[0])
    numbers = iter(range(num_requests))
    models.seen = Seen()

    async def caller() -> None:
        for _ in numbers:
            assert await models.ask(dice.choice(names)) == expected

    watching = asyncio.create_task(models.watch())
    async with asyncio.timeout(10 * PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(num_callers):
            group.create_task(caller())
    watching.cancel()
    assert models.seen.num_engines <= NUM_IN_MEMORY
    assert models.seen.rss_bytes <= NUM_IN_MEMORY * models.size_bytes
    assert max(most_passed_by(models.seen)) <= 1
    ready = [one for one in (await models.states()).values() if one["state"] == "ready"]
    assert 1 <= len(ready) <= NUM_IN_MEMORY


def most_passed_by(seen: Seen) -> list[int]:
    """The most that one other model got memory while a request waited, for each request."""
    return [max(seen.passed_by(one).values(), default=0) for one in seen.asked]


async def swaps(models: Models, num_swaps: int) -> list[float]:
    """Seconds of requests one after the other, each for a model that was used longest ago."""
    for number in range(NUM_IN_MEMORY):
        await models.ask(f"m{number}")
    models.seen = Seen()
    for number in range(NUM_IN_MEMORY, NUM_IN_MEMORY + num_swaps):
        await models.ask(f"m{number % NUM_MODELS}")
    return models.seen.waits_s


def report(models: Models, crowded: Seen, swapped_s: list[float], warm_s: float) -> str:
    """The figures."""
    waits, bound = sorted(crowded.waits_s), NUM_IN_MEMORY * models.size_bytes
    num_ahead = max(crowded.passed_by(one).total() for one in crowded.asked)
    median = statistics.median
    lines = [
        f"a model counts {models.size_bytes / MIB:.0f} MiB, of these {KV_MIB} MiB for KV",
        f"{len(waits)} requests: wait median {median(waits):.2f} s, longest {waits[-1]:.2f} s",
        f"at most {crowded.num_engines} engines at a time, with {crowded.rss_bytes / MIB:.0f} MiB in memory",
        f"at most {num_ahead} other models got memory while a request waited for memory, each once",
        f"the bound is {bound / MIB:.0f} MiB",
        f"{len(swapped_s)} swaps: median {median(swapped_s):.2f} s, {min(swapped_s):.2f} to {max(swapped_s):.2f} s",
        f"the same request to a model in memory: {warm_s:.3f} s",
    ]
    return "\n".join(lines)


async def measure(given: argparse.Namespace) -> str:
    """Everything, with the figures."""
    async with ten_models(given.hidden, given.layers) as models:
        await crowd(models, given.requests, given.callers, given.seed)
        crowded = models.seen
        swapped_s = await swaps(models, given.swaps)
        models.seen = Seen()
        for _ in range(5):
            await models.ask(f"m{(NUM_IN_MEMORY + given.swaps - 1) % NUM_MODELS}")
        return report(models, crowded, swapped_s, statistics.median(models.seen.waits_s))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    print(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
