"""Runs the servers of `weft serve` in an API server process; the engines are in the supervisor process."""

import asyncio
import logging
import shutil
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.process.limits import raise_open_files
from weft.cli.serving.loading import Loaded, load
from weft.cli.serving.servers import Servable, Serving
from weft.core.errors import WeftError
from weft.core.observe.log import configure_logging
from weft.engine.api_servers.client import ApiServerClient
from weft.engine.api_servers.messages import Opened, Prepared, Start, ToServer
from weft.engine.api_servers.series import families_of
from weft.engine.clients.process_client import read_tokenizer
from weft.engine.ipc.channel import Channel
from weft.engine.start.fit import Fitted
from weft.model.open import find_served
from weft.web.http.options import HttpOptions

log = logging.getLogger("weft.cli")


def plain_options(options: ServeOptions) -> dict[str, Any]:
    """Returns the options as plain values, from which `read_options` makes equal options in another process."""
    plain: dict[str, Any] = msgspec.to_builtins(options, enc_hook=str)
    return plain


def read_options(plain: dict[str, Any]) -> ServeOptions:
    """Returns the options of `weft serve` from the plain values that another process sent."""
    return msgspec.convert(plain, ServeOptions, dec_hook=lambda _, text: Path(text))


def serve(descriptor: int) -> int:
    """Serves until the supervisor process stops this server or has itself ended; returns the exit status. `descriptor`
    is the socket to the supervisor.
    """
    raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(end: socket.socket) -> int:
    channel: Channel[ToServer] = await Channel.open(end, ToServer)
    start = await channel.receive()
    if not isinstance(start, Start):  # the supervisor found no model to serve
        return 0
    options = read_options(start.options)
    configure_logging(options.log_level, log_format=options.log_format)
    serving = ApiServing(start, options, channel)
    try:
        return await serving.run()
    except WeftError as error:
        log.error("API server %s has ended: %s", start.name, error)
        return 1
    finally:
        serving.close()
        if serving.is_orphaned:
            shutil.rmtree(start.directory, ignore_errors=True)


class ApiServing(Serving):
    """`Serving` of an API server process: the supervisor process provides the engine and sends the commands to
    drain.
    """

    def __init__(self, start: Start, options: ServeOptions, channel: Channel[ToServer]) -> None:
        http = replace(pick(options, HttpOptions), shares_port=True, port=start.http_port or 0)
        super().__init__(None, options, http, time.monotonic())
        self._start = start
        self._store_name = start.store_name
        self._channel = channel
        self._client: ApiServerClient | None = None

    @property
    def is_orphaned(self) -> bool:
        """True if the supervisor process has ended without telling this process to stop."""
        return self._client is not None and self._client.is_orphaned

    async def run(self) -> int:
        self._make_http()
        loaded, client = await self._attach()
        try:
            self._channel.send(Prepared())
            if not await client.wait_open():
                return 0
            client.on_drain = lambda: self._signals.put(signal.SIGTERM)
            http_port = await self._http.start() if self._options.http else None
            self._channel.send(Opened(await self._open_servers(loaded, client, http_port)))
            await self._until_signalled(client)
        finally:
            await self._http.stop()
            client.shutdown()
        return 0

    async def _attach(self) -> tuple[Servable, ApiServerClient]:
        config = self._start.config
        checkpoint = find_served(config.model_config)
        loaded = self._of_several(load(Fitted(checkpoint, config, free_bytes=0), self._options))
        client = await ApiServerClient.open(
            self._start.name,
            self._channel,
            loaded.found.config,
            await read_tokenizer(loaded.found.checkpoint),
            lambda: families_of(self._metrics.registry),
        )
        client.is_tracing = self._tracer is not None
        self._state.all_series = client.expose
        self._client = client
        return loaded, client

    def _of_several(self, loaded: Loaded) -> Loaded:
        port = self._start.grpc_port
        rpc = replace(loaded.rpc_options, shares_port=True, port=port or 0)
        return replace(loaded, rpc_options=rpc)
