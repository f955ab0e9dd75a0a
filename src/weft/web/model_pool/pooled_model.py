"""A model of a pool: its state, its users, and the requests that wait for it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weft.core.observe.progress import Progress
from weft.web.served import ModelFacts, Served


class ModelState(Enum):
    """State of a model. A model that is `UNLOADING` may still finish requests."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of a pool. `wait_s` bounds the wait of a request for its model; waiting requests hear of the progress
    every `report_s` seconds. A model stays at least `min_stay_s` in memory, and requests do not take it from another
    model's requests before they have waited as long.
    """

    memory_bytes: int
    wait_s: float = 120.0
    min_stay_s: float = 10.0
    report_s: float = 2.0


class Clock(Protocol):
    """Time in seconds, and calls in the future: an event loop."""

    def time(self) -> float:
        """Returns the present time."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Calls `callback` after `delay` seconds."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A model whose files are checked and whose weights are not read. `size_bytes` is the memory that it will take;
    `start` starts its engine, and reports the progress.
    """

    facts: ModelFacts
    size_bytes: int
    start: Callable[[Progress], Awaitable[Served]]


class ModelSource(Protocol):
    """A model that can be started and stopped, again and again.

    `names` are the names that requests may give, the main one first; `adapters` those of them that are adapters. A
    model without use for `idle_s` seconds is stopped; None means never. `known_since` is Unix time in whole seconds. A
    model that `is_local` is examined without a download.
    """

    names: Sequence[str]
    adapters: Sequence[str]
    model: str
    is_pinned: bool
    idle_s: float | None
    known_since: int
    is_local: bool

    async def examine(self, progress: Progress) -> Examined:
        """Finds and checks the model, but reads no weights; raises `ConfigError` if it cannot be served."""

    async def stop(self, served: Served) -> None:
        """Stops the engine. Its memory is free afterwards."""


@dataclass(eq=False, slots=True)
class PooledModel:
    """A model of a pool. `since` is the time of the oldest request that waits. `reserved_bytes` is the memory that
    the model has, or was promised.
    """

    source: ModelSource
    state: ModelState = ModelState.UNLOADED
    served: Served | None = None
    known: ModelFacts | None = None
    size_bytes: int | None = None
    progress: Progress = field(default_factory=Progress)
    reserved_bytes: int = 0
    num_users: int = 0
    waiters: dict[asyncio.Future[Served], float] = field(default_factory=dict)
    room: asyncio.Future[None] | None = None
    error: str | None = None
    failed_at: float = 0.0
    ready_at: float = 0.0
    used_at: float = 0.0
    num_loads: int = 0
    num_failures: int = 0
    load_s: float = 0.0
    keep_alive_s: float | None = None
    idle_timer: asyncio.TimerHandle | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The main name."""
        return self.source.names[0]

    @property
    def since(self) -> float:
        """Time when the oldest waiting request came; infinite if none waits."""
        return min(self.waiters.values(), default=float("inf"))

    @property
    def num_waiters(self) -> int:
        """Number of requests that wait for the model."""
        return len(self.waiters)

    @property
    def facts(self) -> ModelFacts | None:
        """What is known of the model; None before its files were examined."""
        if self.served is not None:
            return self.served.facts
        return self.known

    @property
    def shown_state(self) -> str:
        """The state for people: "failed" if the last start failed, or the engine has ended by itself."""
        is_failed = self.error is not None and self.state is ModelState.UNLOADED
        return "failed" if is_failed else self.state.value

    @property
    def is_idle(self) -> bool:
        """True if the model is ready and has no request."""
        return self.state is ModelState.READY and self.num_users == 0


def count_states(models: Iterable[PooledModel]) -> dict[str, int]:
    """Returns the number of models in each state."""
    counts = Counter(model.shown_state for model in models)
    return {state: counts[state] for state in (*(each.value for each in ModelState), "failed")}
