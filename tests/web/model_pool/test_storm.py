"""Random orders of requests, callers who leave, unloads, deaths and starts that fail: nobody waits for ever."""

import asyncio
import random

import pytest

from tests.web.model_pool.fake_sources import FakeSource, Models
from weft.core.errors import ConfigError, WeftError

MEMORY, NUM_MODELS, NUM_EVENTS = 4, 6, 400


class Storm:
    """A pool of models of random sizes, and what comes at it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        sizes = [self.draw.choice([1, 1, 2, 3]) for _ in range(NUM_MODELS)]
        named = {f"m{n}": {"size": size, "idle_s": 2.0} for n, size in enumerate(sizes)}
        self.models = Models(MEMORY, min_stay_s=self.draw.choice([0.0, 1.0]), **named)
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Let it all come."""
        for _ in range(NUM_EVENTS):
            await self._happen()
            for _ in range(self.draw.randrange(5)):
                await asyncio.sleep(0)
            assert self.models.pool.used_bytes <= MEMORY

    async def settle(self) -> None:
        """Let every model start again, and wait for the end of everything that was begun."""
        for source in self.models.sources.values():
            self._mend(source)
        await self.until_done(*self.tasks)

    async def until_done(self, *tasks: asyncio.Task) -> None:
        """Let time pass until the tasks have ended; no longer than any of them may wait."""
        for _ in range(600):
            if all(task.done() for task in tasks):
                return
            await self.models.clock.advance(1.0)
        raise AssertionError(self.models.states())

    async def _happen(self) -> None:
        name = self.draw.choice(list(self.models.sources))
        source = self.models.sources[name]
        match self.draw.choice(
            ["request"] * 6 + ["leave", "unload", "die", "spoil", "mend", "shut", "pass"]
        ):
            case "request":
                self.tasks.append(asyncio.create_task(self._request(name)))
            case "leave" if self.tasks:
                self.draw.choice(self.tasks).cancel()
            case "unload":
                unloading = self.models.pool.unload(self.models.pool.find(name))
                self.tasks.append(asyncio.create_task(unloading))
            case "die" if source.running is not None:
                source.running.die()
            case "spoil":
                source.error = ConfigError("no such file")
            case "mend":
                self._mend(source)
            case "shut":
                source.gate.clear()
            case "pass":
                await self.models.clock.advance(self.draw.choice([0.25, 1.0, 6.0, 30.0]))

    def _mend(self, source: FakeSource) -> None:
        source.error = None
        source.gate.set()

    async def _request(self, name: str) -> None:
        try:
            await self.models.pool.acquire(self.models.pool.find(name))
        except WeftError:  # its start has failed
            return
        try:
            for _ in range(self.draw.randrange(40)):
                await asyncio.sleep(0)
        finally:
            self.models.end(name, self.draw.choice([None, 0.0, 1.0, -1.0]))


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_leaves_a_pool_that_serves(seed: int):
    """Memory stays within its bound, no model runs twice, every request ends, and each model can be used afterwards."""
    storm = Storm(seed)
    await storm.run()
    await storm.settle()
    assert sum(entry.num_users for entry in storm.models.pool.entries) == 0
    for name in storm.models.sources:
        await storm.models.clock.advance(
            10.0
        )  # a start that has just failed is not tried again at once
        asked = storm.models.ask(name)
        await storm.until_done(asked)
        storm.models.end(name)
        await asked
    await storm.models.pool.close()
    assert all(source.running is None for source in storm.models.sources.values())
