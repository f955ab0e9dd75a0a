"""State of the HTTP server: start progress, the served model, and open requests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from weft.core.aio.tasks import is_set_within
from weft.core.errors import Unavailable
from weft.core.observe.metrics import expose
from weft.core.observe.progress import Progress
from weft.core.observe.tracing import Tracer
from weft.web.inside import InsideCaller
from weft.web.served import Served
from weft.web.store.database import Store

_HEALTH_TIMEOUT_S = 1.0


class Work(Protocol):
    """Work for a client: an exchange, or a task that continues after the client has disconnected."""

    def cut(self, reason: BaseException) -> None:
        """Ends the exchange early."""


class ModelStates(Protocol):
    """Several models behind one server."""

    def health(self) -> bytes:
        """Returns the states of the models, for probes."""


class ServerState:
    """State of the HTTP server, owned by one event loop. `registry` holds the series of `/metrics`; with a `tracer`,
    requests have spans. `store` keeps objects between requests; the default is in memory.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        started: float | None = None,
        tracer: Tracer | None = None,
        store: Store | None = None,
    ) -> None:
        self.registry = registry
        self.store = store or Store()
        self.tracer = tracer
        self.progress = Progress(started)
        self.is_draining = False
        # With several API servers: returns the series of all of them, instead of those of `registry`.
        self.all_series: Callable[[], Awaitable[bytes]] | None = None
        # Work that goes on while the server serves; it is given a function that makes requests to the server.
        self.chores: list[Callable[[InsideCaller], Coroutine[Any, Any, None]]] = []
        self._chores: list[asyncio.Task[None]] = []
        self.model_name = ""  # of the model, or of the default one
        self._served: Served | None = None
        self._pool: ModelStates | None = None
        self._open: set[Work] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    # -- start ----------------------------------------------------------------------------------

    def open(self, served: Served) -> None:
        """Serve from now on."""
        self._served = served
        self.model_name = served.client.model_config.served_model_name
        self.progress.finish()

    def open_pool(self, pool: "ModelStates", model_name: str) -> None:
        """Serve the models of a pool from now on: each endpoint takes its model from there."""
        self._pool = pool
        self.model_name = model_name
        self.progress.finish()

    def start_chores(self, call: InsideCaller) -> None:
        """Starts the work of `chores`."""
        self._chores = [asyncio.create_task(chore(call)) for chore in self.chores]

    async def stop_chores(self) -> None:
        """Ends the work of `chores`. Called once or more."""
        tasks, self._chores = self._chores, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Releases resources of requests, after all requests have ended."""
        await self.store.close()
        if self._served is not None:
            await asyncio.to_thread(self._served.close)

    @property
    def served(self) -> Served | None:
        """The served model; None if there is a pool of models. Raises `Unavailable` during startup and shutdown."""
        if self._served is None and self._pool is None:
            raise Unavailable(
                f"the server is starting ({self.progress.phase}); /startupz shows the progress"
            )
        if self.is_draining:
            raise Unavailable("the server is shutting down")
        return self._served

    async def check_health(self) -> bytes:
        """Returns the body of a healthy answer. Raises the error that prevents this server from answering a request
        now.
        """
        served = self.served
        if served is None:
            assert self._pool is not None
            return self._pool.health()
        client = served.client
        if client.errored:
            raise client.dead_error
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await client.check_health()
        except TimeoutError:
            raise Unavailable("the engine does not answer") from None
        return b"degraded" if client.is_degraded else b""

    async def expose(self) -> bytes:
        """The body of `/metrics`."""
        return expose(self.registry) if self.all_series is None else await self.all_series()

    # -- work -----------------------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Number of requests being served, without probes."""
        return len(self._open)

    @contextmanager
    def hold(self, work: Work) -> Iterator[None]:
        """Counts `work` as open during the block."""
        self._open.add(work)
        self._idle.clear()
        try:
            yield
        finally:
            self._open.discard(work)
            if not self._open:
                self._idle.set()

    def cut_all(self, reason: BaseException) -> None:
        """End everything that is open."""
        for work in tuple(self._open):
            work.cut(reason)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is open; False if that takes longer than `timeout_s`."""
        return await is_set_within(self._idle, timeout_s)
