"""A server with several models, whose engines run on threads of this process."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from tests.busy import PATIENCE_S
from tests.web.serving import ECHO, RANDOM, SCRIPT, serving
from weft.core.observe.progress import Progress
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.model_pool.endpoints import pool_endpoints
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pool_series import PoolSeries
from weft.web.model_pool.pooled_model import Examined, PoolLimits
from weft.web.served import Served

CONTROL = {"authorization": "Bearer control"}


class ThreadSource:
    """A model that starts on a thread of this process, when its `gate` is open."""

    def __init__(self, name: str, model: str, **settings: Any) -> None:
        self.names = (name,)
        self.adapters: tuple[str, ...] = ()
        self.model = model
        self.is_pinned = False
        self.idle_s = None
        self.known_since = 1_700_000_000
        self.is_local = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.late_error: Exception | None = None  # after the gate
        self.num_starts = 0
        self._settings = settings
        self._context: Any = None

    async def examine(self, progress: Progress) -> Examined:
        """The facts are those of a first start."""
        del progress
        if self.error is not None:
            raise self.error
        async with serving(self.model, **self._named()) as served:
            return Examined(served.facts, 1, self._start)

    async def _start(self, progress: Progress) -> Served:
        del progress
        self.num_starts += 1
        await self.gate.wait()
        if self.late_error is not None:
            raise self.late_error
        self._context = serving(self.model, **self._named())
        served: Served = await self._context.__aenter__()
        return served

    async def stop(self, served: Served) -> None:
        """Stops the engine's thread."""
        del served
        await self._context.__aexit__(None, None, None)

    def _named(self) -> dict[str, Any]:
        return {**self._settings, "served_model_name": list(self.names)}


@asynccontextmanager
async def pool_of(sources, *, memory: int = 2, wait_s: float = PATIENCE_S, **options):
    """A server of these models: its pool, and a client of its HTTP port."""
    limits = PoolLimits(memory_bytes=memory, wait_s=wait_s, min_stay_s=0.0, report_s=0.01)
    registry = CollectorRegistry()
    pool = ModelPool(sources, limits)
    PoolSeries(pool, registry)
    state = ServerState(registry)
    http_options = HttpOptions(port=0, control_api_keys=("control",), **options)
    server = HttpServer(state, http_options, probe_endpoints(state))
    port = await server.start()
    server.open_pool(pool, pool.default.name, pool_endpoints(state, pool, http_options))
    try:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S
        ) as client:
            by_name = {source.names[0]: source for source in sources}
            yield SimpleNamespace(pool=pool, http=client, sources=by_name, state=state)
    finally:
        await server.stop()
        await pool.close()


async def until(is_so: Callable[[], Any]) -> None:
    """Waits for a state."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in itertools.count():
            if is_so():
                return
            await asyncio.sleep(0.005)


@pytest.fixture
async def several():
    """Two models that chat and one that embeds, on a memory of two; none is loaded."""
    sources = [
        ThreadSource("one", ECHO, template=SCRIPT),
        ThreadSource("two", ECHO, template=SCRIPT),
        ThreadSource("embed", RANDOM, runner="pooling"),
    ]
    async with pool_of(sources) as site:
        yield site
