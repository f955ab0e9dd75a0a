"""Models of a pool without engines, and a clock that moves when a test says so."""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from weft.core.errors import EngineDead
from weft.core.observe.progress import Progress
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pooled_model import Examined, PoolLimits
from weft.web.options import ApiOptions
from weft.web.served import ModelFacts, Served


class FakeEngine:
    """The client of an engine that only lives and dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lora_requests: dict[str, Any] = {}
        self.errored = False
        self.closed = asyncio.Event()

    @property
    def dead_error(self) -> BaseException:
        return EngineDead("it was killed")

    async def wait_closed(self) -> None:
        await self.closed.wait()

    def die(self) -> None:
        """Ends the engine by itself."""
        self.errored = True
        self.closed.set()


class FakeSource:
    """A model that starts when a test opens its `gate`, or at once. `log` has what was done with all models."""

    def __init__(
        self,
        name: str,
        log: list[str],
        *,
        size: int = 1,
        error: Exception | None = None,
        **more: Any,
    ) -> None:
        self.names = (name,)
        self.adapters: tuple[str, ...] = ()
        self.model = f"/models/{name}"
        self.is_pinned = more.get("is_pinned", False)
        self.idle_s = more.get("idle_s")
        self.known_since = 0
        self.is_local = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = error
        self.size = size
        self.log = log
        self.running: FakeEngine | None = None

    async def examine(self, progress: Progress) -> Examined:
        del progress
        if self.error is not None:
            raise self.error
        facts = ModelFacts(
            model_config=SimpleNamespace(max_model_len=8),
            pooler=None,
            lora_requests={},
            options=ApiOptions(),
            template=None,
            known_since=0,
        )
        return Examined(facts, self.size, self._start)

    async def _start(self, progress: Progress) -> Served:
        del progress
        assert self.running is None, "no model is loaded twice"
        self.running = engine = FakeEngine(self.names[0])
        self.log.append(f"+{engine.name}")
        try:
            await self.gate.wait()
        except BaseException:
            self.running = None
            raise
        return Served(client=engine, tokenizer=None, chat_template=None, started_at=0)

    async def stop(self, served: Served) -> None:
        assert served.client is self.running
        self.running.closed.set()
        await asyncio.sleep(0)
        self.log.append(f"-{self.running.name}")
        self.running = None


@dataclass(order=True)
class _Timer:
    at: float
    number: int
    callback: Callable[[], object] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    """Time that stands still until `advance`."""

    def __init__(self) -> None:
        self._now = 100.0
        self._timers: list[_Timer] = []
        self._number = 0

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        self._number += 1
        timer = _Timer(self._now + delay, self._number, callback)
        heapq.heappush(self._timers, timer)
        return timer

    async def advance(self, seconds: float) -> None:
        """Lets time pass, with all calls that are due, and what follows from them."""
        await settle()
        end = self._now + seconds
        while self._timers and self._timers[0].at <= end:
            timer = heapq.heappop(self._timers)
            self._now = max(self._now, timer.at)
            if not timer.is_cancelled:
                timer.callback()
            await settle()
        self._now = end
        await settle()


async def settle() -> None:
    """Gives all tasks that can run as many turns as they need."""
    for _ in range(20):
        await asyncio.sleep(0)


class Models:
    """A pool of fake models, with one log."""

    def __init__(
        self, memory: int = 1, *, min_stay_s: float = 0.0, **sources: dict[str, Any]
    ) -> None:
        self.log: list[str] = []
        self.clock = FakeClock()
        self.sources = {name: FakeSource(name, self.log, **more) for name, more in sources.items()}
        limits = PoolLimits(memory_bytes=memory, wait_s=60.0, min_stay_s=min_stay_s, report_s=0.001)
        self.pool = ModelPool(list(self.sources.values()), limits, self.clock)

    def ask(self, name: str) -> "asyncio.Task[Served]":
        """A request for a model, which has it once it is there."""
        return asyncio.create_task(self.pool.acquire(self.pool.find(name)))

    def end(self, name: str, keep_alive_s: float | None = None) -> None:
        """Ends a request that has a model."""
        self.pool.release(self.pool.find(name), keep_alive_s)

    async def use(self, name: str) -> None:
        """A request from its beginning to its end."""
        await self.ask(name)
        self.end(name)

    def states(self) -> dict[str, str]:
        """The state of each model."""
        return {entry.name: entry.shown_state for entry in self.pool.entries}
