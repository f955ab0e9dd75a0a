"""The HTTP server: a port, TLS, its start before the model is loaded, and its shutdown."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from email.utils import formatdate
from functools import partial

from uvicorn.config import Config

from weft.core.errors import ConfigError, Unavailable
from weft.http.tls import TlsRefresh, server_tls
from weft.web.http.app import HttpApp, Router
from weft.web.http.connections.listener import listen, remove_socket
from weft.web.http.connections.protocol import Connections, LimitedProtocol
from weft.web.http.connections.sockets import MAX_MESSAGE_BYTES, PING_INTERVAL_S
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.root_path import RootPath
from weft.web.http.state import ModelStates, ServerState
from weft.web.inside import inside_caller
from weft.web.served import Served

log = logging.getLogger("weft.web")

# Time that cut streams get to write their last event, after the drain timeout.
_CUT_GRACE_S = 1.0
_BACKLOG = 2048


class HttpServer:
    """Serves an application. Created, started and stopped on one event loop. `probes` answer from the start."""

    def __init__(
        self, state: ServerState, options: HttpOptions, probes: Iterable[Endpoint]
    ) -> None:
        options.check()
        options = options.with_room_for_resume()
        self._state = state
        self._options = options
        self._app = HttpApp(state, options, Router(probes))
        self._connections = Connections()
        self._server: asyncio.Server | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._ssl = server_tls(options.tls_files)
        self._refresh = (
            TlsRefresh(self._ssl, options.tls_files)
            if self._ssl is not None and options.enable_ssl_refresh
            else None
        )

    async def start(self) -> int:
        """Starts to listen and to answer probes; returns the bound port, 0 for a Unix socket. Raises `ConfigError` if
        the server cannot listen.
        """
        options = self._options
        app = self._app if options.root_path is None else RootPath(self._app, options.root_path)
        config = Config(
            app,
            access_log=False,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            # Uvicorn warns of invalid requests; clients get these errors in responses.
            log_level=logging.ERROR,
            proxy_headers=False,
            timeout_keep_alive=int(options.keep_alive_s),
            ws="none",  # the protocol sets it at the first upgrade
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=PING_INTERVAL_S,
            ws_ping_timeout=PING_INTERVAL_S,
            ws_per_message_deflate=False,  # a small message could grow beyond every limit
        )
        config.load()
        loop = asyncio.get_running_loop()
        listener = listen(options)
        create = loop.create_server if options.uds is None else loop.create_unix_server
        self._server = await create(
            partial(LimitedProtocol, config, self._connections, options),
            sock=listener,
            ssl=self._ssl,
            # A connection in its TLS handshake holds a file descriptor, and does not count as a connection yet.
            ssl_handshake_timeout=options.tls_handshake_timeout_s if self._ssl else None,
            backlog=_BACKLOG,
        )
        self._tick()
        return 0 if options.uds is not None else int(listener.getsockname()[1])

    def open(self, served: Served, endpoints: Iterable[Endpoint]) -> None:
        """Accepts requests to all endpoints from now on."""
        self._route(endpoints)
        self._app.take_prompts_of(served.client.model_config.max_model_len)
        self._state.open(served)
        self._state.start_chores(inside_caller(self._app))

    def _route(self, endpoints: Iterable[Endpoint]) -> None:
        router = Router(endpoints)
        self._app.open(router)
        self._connections.socket_paths = tuple(
            endpoint.path.encode() for endpoint in router.endpoints if endpoint.socket is not None
        )

    def open_pool(self, pool: ModelStates, model_name: str, endpoints: Iterable[Endpoint]) -> None:
        """Accepts requests to all endpoints from now on, which take their models from a pool."""
        self._route(endpoints)
        self._state.open_pool(pool, model_name)
        self._state.start_chores(inside_caller(self._app))

    def take_prompts_of(self, max_model_len: int) -> None:
        """Accepts bodies with two contexts of this many token ids too."""
        self._app.take_prompts_of(max_model_len)

    def set_not_serving(self) -> None:
        """Fails readiness and refuses new requests at once; open requests continue."""
        self._state.is_draining = True

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets open ones finish for `timeout_s`, cuts the rest, then stops."""
        self.set_not_serving()
        await self._state.stop_chores()
        if not await self._state.wait_idle(timeout_s):
            log.warning(
                "aborting %d HTTP requests that did not finish in time", self._state.num_open
            )
        await self.stop()

    async def stop(self) -> None:
        """Ends every request with an error, and stops listening. Idempotent."""
        self.set_not_serving()
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        if self._options.uds is not None:
            remove_socket(self._options.uds)
        await self._state.stop_chores()
        self._state.cut_all(Unavailable("the server is shutting down"))
        await self._state.wait_idle(_CUT_GRACE_S)
        if self._clock is not None:
            self._clock.cancel()
        for connection in list(self._connections.connections):
            connection.shutdown()
        # Closing waits for unsent data: a client that does not read must not keep the process alive.
        self._connections.note_lost()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CUT_GRACE_S):
                await self._connections.all_lost.wait()
        for connection in list(self._connections.connections):
            connection.transport.abort()
        if self._connections.tasks:
            await asyncio.wait(self._connections.tasks, timeout=_CUT_GRACE_S)
        await self._state.close()

    def _tick(self) -> None:
        """Sets the date of responses, and looks for new certificate files, once a second."""
        if self._refresh is not None:
            _read_certificates(self._refresh)
        date = formatdate(time.time(), usegmt=True).encode()
        self._connections.default_headers = [(b"date", date)]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._tick)


def _read_certificates(refresh: TlsRefresh) -> None:
    try:
        if refresh.look():
            log.info("the certificate files changed: new connections use the new certificate")
    except ConfigError as error:
        log.error("the certificate files changed, and the server keeps the old ones: %s", error)
