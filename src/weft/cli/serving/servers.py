"""Runs an engine and its servers, from the first health probe to the end of draining.

The HTTP server listens first; meanwhile a thread finds the model and imports modules.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.process.signals import Signalled, Signals
from weft.cli.serving.banner import Address, place
from weft.cli.serving.start_show import show_start
from weft.cli.tracing import open_tracer
from weft.core.address import join_host_port
from weft.core.aio.tasks import every
from weft.core.client import EngineClient
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import EngineDead
from weft.core.logged_client import as_logged
from weft.core.observe.metrics import Metrics
from weft.core.observe.tracing import Tracer
from weft.engine.clients.child import EngineChild
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.page.files import DOCS, PAGES
from weft.web.store.database import Store
from weft.web.store.store_options import StoreOptions
from weft.web.store.store_series import StoreSeries

if TYPE_CHECKING:
    from weft.cli.serving.loading import Loaded
    from weft.engine.start.fit import Fitted
    from weft.rpc.server import RpcServer
    from weft.web.http.endpoint import Endpoint
    from weft.web.served import Served

log = logging.getLogger("weft.cli")

T = TypeVar("T")

LOG_STATS_PERIOD_S = 5.0
DEFAULT_MODEL = EngineOptions().model
# With 64 streams, the number of live objects exceeds Python's default threshold of 700 at every step, and none of
# them is garbage (docs/decisions/0009).
_GC_THRESHOLD = 20_000
EXIT_SIGNALLED = 128  # plus the number of the signal that came before the server was ready


class Server(Protocol):
    """A server of one protocol: HTTP or gRPC."""

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets open requests finish for up to `timeout_s`, then stops the server."""

    async def stop(self) -> None:
        """Ends every request and stops listening. May be called more than once."""


class Servable(Protocol):
    """A model and its engine, in this process or elsewhere, with the settings for serving it."""

    async def start_engine(self, metrics: Metrics) -> EngineClient:
        """Starts the engine and returns its client. Called once."""

    def make_rpc_server(self, client: EngineClient, tracer: Tracer | None) -> "RpcServer | None":
        """Returns a gRPC server for `client`, not started; None if gRPC is off."""

    def serve_over_http(
        self, client: EngineClient, state: ServerState
    ) -> "tuple[Served, Sequence[Endpoint]]":
        """Returns the objects that the HTTP endpoints use, and the endpoints."""

    def print_ready(self, *, http: Address | None, grpc_port: int | None, load_s: float) -> None:
        """Prints the ready banner."""


class Serving:
    """Starts, runs and stops the servers of one `weft serve`. The object is created before the event loop; `run` is
    called once.
    """

    def __init__(
        self, model: str | None, options: ServeOptions, http_options: HttpOptions, started: float
    ) -> None:
        self._num_loading = 0  # threads that load
        self._model = model
        self._options = options
        self._http_options = http_options
        self._started = started
        endpoint = options.otlp_traces_endpoint
        self._tracer = (
            None
            if endpoint is None
            else open_tracer("--otlp-traces-endpoint", "weft", endpoint=endpoint)
        )
        self._metrics = Metrics(
            hidden_for=options.show_hidden_metrics_for_version, tracer=self._tracer
        )
        if self._tracer is not None:
            self._metrics.registry.register(self._tracer.series)
        self._store_name: str | None = None  # of a store in memory; None: a new name
        self._servers: list[Server] = []
        self._signals = Signals()

    @property
    def is_loading(self) -> bool:
        """True while a thread loads."""
        return self._num_loading > 0

    def close(self) -> None:
        """Exports the remaining spans. Called once, after `run`."""
        if self._tracer is not None:
            self._tracer.close()

    async def run(self) -> int:
        """Serves until a signal arrives or the engine dies; returns the exit status."""
        self._signals.listen()
        self._make_http()
        try:
            http_port = await self._http.start() if self._options.http else None
            return await self._serve(http_port)
        except Signalled as signalled:
            return EXIT_SIGNALLED + signalled.number
        finally:
            await self._http.stop()

    def _make_http(self) -> None:
        store = Store(pick(self._options, StoreOptions), name=self._store_name)
        store.open()
        self._metrics.registry.register(StoreSeries(store))
        self._state = ServerState(self._metrics.registry, self._started, self._tracer, store)
        self._progress = self._state.progress
        pages = PAGES if self._http_options.ui else DOCS
        open_to_all = (*probe_endpoints(self._state), *pages)
        self._http = HttpServer(self._state, self._http_options, open_to_all)
        self._servers.append(self._http)

    async def _serve(self, http_port: int | None) -> int:
        loaded: Servable
        client: EngineClient
        with show_start(self._progress):
            if self._options.remote is not None:
                self._progress.enter("importing", 0.1)
                loaded, client = await self._start_other(
                    "weft.cli.serving.remote:reach", "reaching the servers"
                )
            elif self._options.engine == "vllm":
                self._progress.enter("starting vLLM", 0.1)
                loaded, client = await self._start_other(
                    "weft.cli.serving.vllm:load", "following vLLM"
                )
            else:
                loaded, client = await self._start_engine()
        stat_log = asyncio.create_task(every(LOG_STATS_PERIOD_S, client.do_log_stats), name="stats")
        if self._options.disable_log_stats:
            stat_log.cancel()
        try:
            await self._open(loaded, client, http_port)
            await self._until_signalled(client)
        finally:
            stat_log.cancel()
            client.shutdown()
            await client.wait_closed()
        return 0

    async def _open(self, loaded: Servable, client: EngineClient, http_port: int | None) -> None:
        """Starts to accept requests."""
        grpc_port = await self._open_servers(loaded, client, http_port)
        self._announce(loaded, http_port, grpc_port)

    async def _open_servers(
        self, loaded: Servable, client: EngineClient, http_port: int | None
    ) -> int | None:
        """Starts the servers of this process; returns the gRPC port."""
        client = with_log(client, self._options)
        grpc_port = None
        grpc = loaded.make_rpc_server(client, self._tracer) if self._options.grpc else None
        if grpc is not None:
            grpc.service.store_name = self._state.store.name
            self._servers.append(grpc)
            grpc_port = await grpc.start()
        if http_port is not None:
            self._http.open(*loaded.serve_over_http(client, self._state))
        freeze_heap()
        return grpc_port

    def _announce(self, loaded: Servable, http_port: int | None, grpc_port: int | None) -> None:
        if http_port is not None:
            self._say_running(http_port)
        loaded.print_ready(
            http=None if http_port is None else self._address(http_port),
            grpc_port=grpc_port,
            load_s=time.monotonic() - self._started,
        )

    def _say_running(self, http_port: int) -> None:
        # Scripts wait for this line before their first request.
        log.info("Uvicorn running on %s", place(self._address(http_port)))

    async def _start_engine(self) -> "tuple[Loaded, EngineClient]":
        """Starts the engine's process, which loads the weights; meanwhile this process imports the servers' modules."""
        ranks = self._options.ranks()
        # A head may run all engines on other nodes.
        child = await EngineChild.spawn() if ranks is None or ranks.num_local else None
        try:
            self._progress.enter("reading the model's files", 0.1, 0.3)
            found = await self._signals.unless(self._on_thread(self._find))
            if child is not None:
                await child.launch(found.config.of_rank(0 if ranks is None else ranks.start))
            self._progress.enter("loading the weights", 0.3)
            loaded = await self._signals.unless(self._on_thread(lambda: self._load(found)))
            client = await self._signals.unless(
                loaded.start_engine(self._metrics, child, self._progress.load)
            )
        except BaseException:
            if child is not None:
                await child.discard()
            raise
        return loaded, client

    async def _start_other(self, source: str, title: str) -> tuple[Servable, EngineClient]:
        """Starts an engine that is not Weft's own, vLLM's or a remote one: `source` creates it on a thread."""
        module, _, name = source.partition(":")
        loaded: Servable = await self._signals.unless(
            self._on_thread(
                lambda: getattr(import_module(module), name)(self._model, self._options)
            )
        )
        self._progress.enter(title, 0.3)
        return loaded, await self._signals.unless(loaded.start_engine(self._metrics))

    def _find(self) -> "Fitted":
        finding = import_module("weft.cli.serving.finding")
        found: Fitted = finding.find(
            self._model or DEFAULT_MODEL, self._options, self._progress.load
        )
        return found

    def _load(self, found: "Fitted") -> "Loaded":
        loaded: Loaded = import_module("weft.cli.serving.loading").load(found, self._options)
        return loaded

    def _address(self, port: int) -> Address:
        options = self._http_options
        host_port = join_host_port(options.host, port) if options.uds is None else "localhost"
        return Address(
            host_port=host_port,
            has_tls=options.ssl_certfile is not None,
            has_page=options.ui and options.uds is None,
            socket=options.uds,
        )

    # -- shutdown -------------------------------------------------------------------------------

    async def _until_signalled(self, client: EngineClient) -> None:
        try:
            await self._signals.unless(client.wait_closed())
        except Signalled as signalled:
            await self._drain(signalled)
        else:
            await asyncio.gather(*(server.stop() for server in self._servers))
            raise EngineDead(str(client.dead_error))

    async def _drain(self, signalled: Signalled) -> None:
        timeout_s = self._options.shutdown_timeout
        log.info("%s: open requests get %g s to finish", signalled.name, timeout_s)
        try:
            await self._signals.unless(self._drain_all(timeout_s))
        except Signalled as again:
            log.warning("%s again: stopping now", again.name)
            await asyncio.gather(*(server.stop() for server in self._servers))

    async def _drain_all(self, timeout_s: float) -> None:
        await asyncio.gather(*(server.drain(timeout_s) for server in self._servers))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which runs on a daemon thread: the thread does not keep the process alive after
        a signal.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            self._num_loading -= 1
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # there is no error

        def run() -> None:
            try:
                outcome: tuple[T | None, BaseException | None] = (work(), None)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                outcome = (None, error)
            with suppress(RuntimeError):  # the loop is closed, so no task waits any more
                loop.call_soon_threadsafe(finish, *outcome)

        self._num_loading += 1
        threading.Thread(target=run, name="weft-load", daemon=True).start()
        return await future


def freeze_heap() -> None:
    """Leaves all objects of the start out of later collections: 6 → 3 % of the front's time with 64 streams
    (benchmarks/serve.py, paced).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def with_log(client: EngineClient, options: ServeOptions) -> EngineClient:
    """Returns a client that logs requests if the options say so; else `client` itself."""
    if not options.enable_log_requests:
        return client
    return as_logged(client, options.max_log_len)
