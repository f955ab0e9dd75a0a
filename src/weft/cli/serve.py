"""`weft serve`: checks what it can before the slow part, starts engine and server, waits, drains."""

import asyncio
import ipaddress
import logging
import math
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from weft.cli.banner import Ready, ready_block
from weft.cli.limits import check_port, raise_open_files
from weft.cli.options import ServeOptions
from weft.compute.load import choose, describe_runner, with_resident_sizes
from weft.compute.native import cpu
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, EngineDead
from weft.core.log import configure_logging
from weft.engine.configure import resolve
from weft.engine.memory import free_memory_bytes
from weft.engine.process_client import ProcessClient
from weft.model.open import Checkpoint, open_model
from weft.rpc.server import RpcOptions, RpcServer
from weft.rpc.tls import server_credentials

log = logging.getLogger("weft.cli")

T = TypeVar("T")

EXIT_SIGNALLED = 128  # plus the signal's number, when it came before the server was ready


def serve(model: str = "embedded:tiny", *, options: ServeOptions = ServeOptions()) -> int:
    """Serve a model over gRPC until SIGTERM or Ctrl-C.

    Parameters
    ----------
    model
        A checkpoint's directory, a Hub id (Qwen/Qwen3-0.6B), or one that is built in:
        embedded:tiny, embedded:random?layers=2&..., embedded:echo.
    """
    started = time.monotonic()
    configure_logging(options.log_level)
    rpc_options = to_rpc_options(options)
    raise_open_files()
    check_port(rpc_options.host, rpc_options.port)
    # The server reads these again: a bad file is to be told now, not after the model has loaded.
    server_credentials(rpc_options.tls_cert, rpc_options.tls_key, rpc_options.tls_client_ca)
    engine_options = options.engine_options(model)
    checkpoint = with_resident_sizes(
        open_model(model, revision=options.revision, dtype=options.dtype), choose(engine_options)
    )
    free_bytes = free_memory_bytes()
    config = resolve(engine_options, checkpoint.card, free_bytes)
    if not rpc_options.api_keys and not _is_loopback(rpc_options.host):
        log.warning("no --api-key: anybody who reaches %s can use this server", rpc_options.host)
    server = Serving(checkpoint, config, rpc_options, options.shutdown_timeout)
    return asyncio.run(server.run(free_bytes=free_bytes, started=started))


def to_rpc_options(options: ServeOptions) -> RpcOptions:
    """The part that concerns the gRPC server; refuses what would leave it open by mistake."""
    if not (math.isfinite(options.shutdown_timeout) and options.shutdown_timeout >= 0):
        raise ConfigError(
            f"--shutdown-timeout must be 0 or more seconds, not {options.shutdown_timeout}"
        )
    keys = options.api_key
    if keys is not None and (not keys or not all(key.strip() for key in keys)):
        raise ConfigError("--api-key must not be empty")  # an unset variable is no open door
    return RpcOptions(
        host=options.host,
        port=options.grpc_port,
        api_keys=tuple(keys or ()),
        tls_cert=options.grpc_tls_cert,
        tls_key=options.grpc_tls_key,
        tls_client_ca=options.grpc_tls_client_ca,
        reflection=options.grpc_reflection,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Signalled(Exception):
    """Somebody asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


class Serving:
    """One engine behind one gRPC server, from start to drained."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        rpc_options: RpcOptions,
        shutdown_timeout_s: float,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._rpc_options = rpc_options
        self._shutdown_timeout_s = shutdown_timeout_s
        self._signals: asyncio.Queue[int] = asyncio.Queue()

    async def run(self, *, free_bytes: int, started: float) -> int:
        """Serve until a signal or the engine's death; the result is the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        try:
            client = await self._unless_signalled(
                ProcessClient.start(self._checkpoint, self._config)
            )
        except Signalled as signalled:
            return EXIT_SIGNALLED + signalled.number
        server = RpcServer(client, self._checkpoint.tokenizer_files, self._rpc_options)
        try:
            port = await server.start()
            print(ready_block(self._ready(port, free_bytes, started)), flush=True)
            await self._until_signalled(client, server)
        finally:
            client.shutdown()
            await client.wait_closed()
        return 0

    async def _until_signalled(self, client: ProcessClient, server: RpcServer) -> None:
        try:
            await self._unless_signalled(client.wait_closed())
        except Signalled as signalled:
            await self._drain(server, signalled)
        else:
            await server.stop()
            raise EngineDead(str(client.dead_error))

    async def _drain(self, server: RpcServer, signalled: Signalled) -> None:
        log.info("%s: open requests get %g s to finish", signalled.name, self._shutdown_timeout_s)
        try:
            await self._unless_signalled(server.drain(self._shutdown_timeout_s))
        except Signalled as again:
            log.warning("%s again: stopping now", again.name)
            await server.stop()

    async def _unless_signalled(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. A signal that comes first cancels it and raises `Signalled`."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self._signals.get())
        try:
            await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Signalled(signalled.result())
        finally:
            for pending in (task, signalled):
                pending.cancel()
            await asyncio.gather(task, signalled, return_exceptions=True)

    def _ready(self, port: int, free_bytes: int, started: float) -> Ready:
        options, compute = self._rpc_options, self._config.compute_config
        assert compute is not None
        host = f"[{options.host}]" if ":" in options.host.strip("[]") else options.host
        return Ready(
            card=self._checkpoint.card,
            config=self._config,
            cpu=cpu(),
            computed=describe_runner(self._checkpoint, compute),
            free_bytes=free_bytes,
            address=f"{host}:{port}",
            has_tls=options.tls_cert is not None,
            has_keys=bool(options.api_keys),
            load_s=time.monotonic() - started,
        )
