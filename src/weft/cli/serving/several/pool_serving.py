"""`weft serve` with several models: their sources, the pool, and the servers in front of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.process.signals import Signalled
from weft.cli.serving.banner import pool_block, show_block
from weft.cli.serving.finding import find
from weft.cli.serving.loading import Loaded, load, rpc_address
from weft.cli.serving.servers import LOG_STATS_PERIOD_S, Serving, freeze_heap, with_log
from weft.cli.serving.several.model_list import ModelSetting, read_models
from weft.cli.serving.start_show import show_start
from weft.compute.native import trim_heap
from weft.core.aio.tasks import every
from weft.core.client import EngineClient
from weft.core.config.defaults import DEFAULT_MEMORY_SHARE
from weft.core.errors import ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.observe.progress import Progress
from weft.core.observe.readable import format_bytes
from weft.engine.start.capacity import FRONT_BYTES, capacity_of
from weft.model.open import is_local
from weft.web.http.options import HttpOptions
from weft.web.model_pool.endpoints import pool_endpoints
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pool_options import PoolOptions
from weft.web.model_pool.pool_series import PoolSeries
from weft.web.model_pool.pooled_model import Examined, PooledModel, PoolLimits
from weft.web.served import ModelFacts, Served

T = TypeVar("T")


class OnThread(Protocol):
    """Runs work on a thread, and returns its result."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class EngineSource:
    """A model whose engine runs in a child process while the model is in memory. `memory_bytes` is the memory of all
    models together: each is sized as if it were alone, so it has the same size whenever it is loaded.
    """

    def __init__(
        self,
        setting: ModelSetting,
        metrics: Metrics,
        memory_bytes: int,
        on_thread: OnThread,
        take_prompts_of: Callable[[int], None],
        *,
        is_pinned: bool,
    ) -> None:
        adapters = setting.adapters
        self.setting = setting
        self.adapters: Sequence[str] = tuple(adapter.lora_name for adapter in adapters)
        self.names: Sequence[str] = (setting.name, *self.adapters)
        self.model = setting.model
        self.is_pinned = setting.is_pinned or is_pinned
        self.idle_s = setting.idle_s
        self.known_since = int(time.time())
        self.is_local = is_local(setting.model)
        self.loaded: Loaded | None = None  # what runs
        self._loras = {adapter.lora_name: adapter for adapter in adapters}
        self._metrics = metrics
        self._memory_bytes = memory_bytes
        self._on_thread = on_thread
        self._take_prompts_of = take_prompts_of

    async def examine(self, progress: Progress) -> Examined:
        """Finds and checks the model, but reads no weights; raises `ConfigError` if it cannot be served."""
        setting = self.setting
        progress.enter("reading the model's files", 0.0, 0.3)
        found = await self._on_thread(
            lambda: find(setting.model, setting.options, progress.load, self._memory_bytes)
        )
        size_bytes = capacity_of(found).total_bytes - FRONT_BYTES
        loaded = await self._on_thread(lambda: load(found, setting.options))
        facts = ModelFacts(
            model_config=loaded.found.config.model_config,
            pooler=found.config.pooler_config,
            lora_requests=self._loras,
            options=loaded.api_options,
            template=loaded.chat_template,
            known_since=self.known_since,
        )
        self._take_prompts_of(facts.model_config.max_model_len)
        return Examined(facts, size_bytes, partial(self._start, loaded))

    async def _start(self, loaded: Loaded, progress: Progress) -> Served:
        client = await loaded.start_engine(self._metrics, None, progress.load)
        try:
            self.loaded = loaded
            seen = with_log(client, self.setting.options)
            return replace(loaded.served(seen), started_at=self.known_since)
        except BaseException:
            await self._end(client)
            raise

    async def stop(self, served: Served) -> None:
        """Stops the engine. Its memory is free afterwards."""
        await self._end(served.client)
        for template in (served.chat_template, served.request_templates):
            if template is not None:
                template.close()
        await asyncio.to_thread(served.close)
        trim_heap()

    async def _end(self, client: EngineClient) -> None:
        self.loaded = None
        client.shutdown()
        await client.wait_closed()
        self._metrics.remove_model(self.setting.name)


class PoolServing(Serving):
    """Serves several models. Made before the event loop is; `run` is called once."""

    def __init__(
        self,
        texts: Sequence[str],
        model: str | None,
        options: ServeOptions,
        http_options: HttpOptions,
        started: float,
    ) -> None:
        super().__init__(model, options, http_options, started)
        self._texts = texts

    async def _serve(self, http_port: int | None) -> int:
        assert http_port is not None, "check_pool refuses --no-http"
        with show_start(self._progress):
            self._progress.enter("reading the models' files", 0.1, 0.3)
            settings = await self._signals.unless(self._on_thread(self._read))
            limits = await self._signals.unless(self._on_thread(lambda: self._limits(settings[0])))
            pool = self._make_pool(settings, limits)
            self._progress.enter("loading the first models", 0.3)
            try:
                await self._signals.unless(self._start(pool, settings))
            except BaseException:
                await pool.close()
                raise
        tasks = [asyncio.create_task(pool.examine_all(), name="examine")]
        if not self._options.disable_log_stats:
            tasks.append(asyncio.create_task(every(LOG_STATS_PERIOD_S, partial(_log_stats, pool))))
        try:
            client = await self._open_pool(pool, http_port)
            await self._until_end(client)
        finally:
            for task in tasks:
                task.cancel()
            await pool.close()
        return 0

    def _read(self) -> list[ModelSetting]:
        return read_models(self._texts, self._options)

    def _limits(self, default: ModelSetting) -> PoolLimits:
        options = pick(self._options, PoolOptions)
        free_bytes = find(default.model, default.options, self._progress.load).free_bytes
        memory_bytes = options.models_memory
        if memory_bytes is None:
            memory_bytes = int(free_bytes * DEFAULT_MEMORY_SHARE)
        elif memory_bytes > free_bytes:
            raise ConfigError(
                f"--models-memory is {format_bytes(memory_bytes)}, but only {format_bytes(free_bytes)} of memory are "
                "free"
            )
        return PoolLimits(
            memory_bytes=memory_bytes,
            wait_s=options.models_wait,
            min_stay_s=options.models_min_stay,
        )

    def _make_pool(self, settings: Sequence[ModelSetting], limits: PoolLimits) -> ModelPool:
        grpc = self._options.grpc
        sources = [
            # The gRPC server has one model, as its protocol has: the first.
            EngineSource(
                setting,
                self._metrics,
                limits.memory_bytes,
                self._on_thread,
                self._http.take_prompts_of,
                is_pinned=grpc and place == 0,
            )
            for place, setting in enumerate(settings)
        ]
        pool = ModelPool(sources, limits)
        PoolSeries(pool, self._metrics.registry)
        return pool

    async def _start(self, pool: ModelPool, settings: Sequence[ModelSetting]) -> None:
        """Checks the models that were named, so that mistakes end the start, and starts the pinned ones."""
        for entry, setting in zip(pool.entries, settings, strict=True):
            if entry.source.is_local and not setting.is_found:
                await pool.examine(entry)
        await pool.start()

    async def _open_pool(self, pool: ModelPool, http_port: int) -> EngineClient | None:
        """Lets requests in; returns the client of the model that gRPC has."""
        grpc_port, client = None, None
        if self._options.grpc:
            source, served = pool.default.source, pool.default.served
            assert isinstance(source, EngineSource)
            assert source.loaded is not None, "it is pinned"
            assert served is not None, "it is pinned"
            client = served.client
            grpc = source.loaded.make_rpc_server(client, self._tracer)
            self._servers.append(grpc)
            grpc_port = await grpc.start()
        options = self._http_options
        endpoints = pool_endpoints(self._state, pool, options)
        self._http.open_pool(pool, pool.default.name, endpoints)
        freeze_heap()
        self._announce_pool(pool, http_port, grpc_port)
        return client

    def _announce_pool(self, pool: ModelPool, http_port: int, grpc_port: int | None) -> None:
        self._say_running(http_port)
        source = pool.default.source
        assert isinstance(source, EngineSource)
        grpc = None
        if grpc_port is not None:
            assert source.loaded is not None
            grpc = rpc_address(source.loaded.rpc_options, grpc_port)
        memory = (
            f"{format_bytes(pool.used_bytes)} of {format_bytes(pool.limits.memory_bytes)} for models; "
            "others are loaded when requests name them"
        )
        block = pool_block(
            [_described(entry) for entry in pool.entries],
            memory,
            http=self._address(http_port),
            grpc=grpc,
            has_keys=self._http_options.has_api_keys,
            load_s=time.monotonic() - self._started,
        )
        show_block(block)

    async def _until_end(self, client: EngineClient | None) -> None:
        """Waits for a signal, or for the end of the engine that gRPC has."""
        if client is not None:
            await self._until_signalled(client)
            return
        try:
            await self._signals.unless(asyncio.Event().wait())
        except Signalled as signalled:
            await self._drain(signalled)


def _described(entry: PooledModel) -> str:
    size = "" if entry.size_bytes is None else f", {format_bytes(entry.size_bytes)}"
    state = "in memory" if entry.served is not None else "not in memory"
    pinned = ", pinned" if entry.source.is_pinned else ""
    return f"{entry.name}: {state}{size}{pinned}"


async def _log_stats(pool: ModelPool) -> None:
    for entry in pool.entries:
        if entry.served is not None:
            with suppress(Exception):
                await entry.served.client.do_log_stats()
