"""`AsyncLLM`: an engine inside a Python program that has its own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from weft.core.client import EngineClient
from weft.core.observe.metrics import Metrics
from weft.engine.clients.data_parallel import start_engines
from weft.engine.llm.llm_options import fit_options
from weft.engine.start.fit import Fitted


class AsyncLLM:
    """An engine inside a program: `async with AsyncLLM(model, **options) as engine` gives an `EngineClient`.

    Settings are those of `LLM`. The engine runs on its own thread, or with `data_parallel_size` in processes, so it
    does not block the event loop. Raises `ConfigError` or `BadRequest` for a model or options that cannot be served.
    """

    def __init__(self, model: str = "embedded:tiny", **options: Any) -> None:
        self._model, self._options = model, options
        self._running = AsyncExitStack()

    async def __aenter__(self) -> EngineClient:
        fitted = await asyncio.to_thread(fit_options, self._model, self._options)
        return await self._running.enter_async_context(running(fitted, Metrics()))

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()


@asynccontextmanager
async def running(fitted: Fitted, metrics: Metrics | None = None) -> AsyncIterator[EngineClient]:
    """Context manager that runs an engine in this program until the block ends."""
    client = await start_engines(fitted.checkpoint, fitted.config, metrics)
    try:
        yield client
    finally:
        client.shutdown()
        await client.wait_closed()
