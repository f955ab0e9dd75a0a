"""The gRPC server: ports, credentials, limits, health and the way it stops."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_reflection.v1alpha import reflection

from weft.core.client import EngineClient
from weft.core.errors import ConfigError, EngineDead
from weft.rpc.auth import BearerAuth
from weft.rpc.health import HEALTH_SERVICE, Health
from weft.rpc.methods import SERVICE
from weft.rpc.service import Service, is_alive
from weft.rpc.tls import server_credentials

log = logging.getLogger("weft.rpc")

# After a drain has run out of time: how long aborted streams get to write their last message.
_ABORT_GRACE_S = 5.0
# How long calls that never end by themselves (watches, event streams) get when the server stops.
_STOP_GRACE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOptions:
    """Settings of one gRPC server. `port` 0 lets the system choose; no `api_keys` means no check.

    `max_message_bytes` bounds what is received; a prompt token takes at most five bytes.
    `reasoning_parser` names how the model writes thoughts: a constraint begins behind them.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    api_keys: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    reflection: bool = False
    max_message_bytes: int = 64 * 2**20
    max_metadata_bytes: int = 16 * 2**10
    max_concurrent_streams: int = 1024
    max_concurrent_calls: int = 8192
    write_timeout_s: float = 60.0
    heartbeat_s: float = 1.0
    health_interval_s: float = 0.5
    reasoning_parser: str | None = None

    @property
    def address(self) -> str:
        """host:port, with an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host and self.host[0] != "[" else self.host
        return f"{host}:{self.port}"


class RpcServer:
    """Serves an `EngineClient` over gRPC. Make, start and stop it on one event loop."""

    def __init__(
        self, client: EngineClient, tokenizer_files: Mapping[str, bytes], options: RpcOptions
    ) -> None:
        self._client = client
        self._options = options
        self._health = Health()
        self.service = Service(
            client,
            tokenizer_files,
            self._health,
            write_timeout_s=options.write_timeout_s,
            heartbeat_s=options.heartbeat_s,
            reasoning_parser=options.reasoning_parser,
        )
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen and serve; the port that was bound. `ConfigError` if that is impossible."""
        if not all(self._options.api_keys):
            raise ConfigError("--api-key: a key must not be empty")
        server = grpc.aio.server(
            interceptors=(BearerAuth(self._options.api_keys),) if self._options.api_keys else (),
            options=_to_channel_args(self._options),
            maximum_concurrent_rpcs=self._options.max_concurrent_calls,
        )
        server.add_generic_rpc_handlers((self.service.handler(), self._health.handler()))
        if self._options.reflection:
            names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        port = _bind(server, self._options)
        await server.start()
        self._server = server
        self._health.set_serving(await is_alive(self._client))
        self._watch = asyncio.create_task(self._watch_engine(), name="weft-rpc-health")
        log.info("gRPC server listens on %s (port %d)", self._options.address, port)
        return port

    def set_not_serving(self) -> None:
        """Tell health checks at once that no more work should come; what is open goes on."""
        if self._watch is not None:
            self._watch.cancel()
        self._health.set_serving(False)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let open ones finish for `timeout_s`, abort the rest, then stop."""
        self.set_not_serving()
        self.service.generate.close()
        requests = self.service.generate.open_requests
        if not await requests.wait_idle(timeout_s):
            # Aborted in the engine, not cancelled here: each caller gets its last message.
            log.warning("aborting %d requests that did not finish in time", len(requests.ids))
            with suppress(EngineDead):
                await self._client.abort(requests.ids)
            await requests.wait_idle(_ABORT_GRACE_S)
        await self.stop()

    async def stop(self) -> None:
        """End every call and stop listening. Idempotent."""
        self.set_not_serving()
        self.service.generate.close()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(_STOP_GRACE_S)

    async def _watch_engine(self) -> None:
        """Make health follow the engine: a dead one shows within `health_interval_s` and a second."""
        while True:
            await asyncio.sleep(self._options.health_interval_s)
            self._health.set_serving(await is_alive(self._client))


def _to_channel_args(options: RpcOptions) -> list[tuple[str, int]]:
    return [
        # A second server on the same port would silently take a part of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_metadata_size", options.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", options.max_metadata_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        # Gateways ping idle connections, and long calls that are not streamed.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A peer that vanished without a word is noticed, and its requests are aborted.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def _bind(server: grpc.aio.Server, options: RpcOptions) -> int:
    credentials = server_credentials(options.tls_cert, options.tls_key, options.tls_client_ca)
    try:
        if credentials is None:
            port = server.add_insecure_port(options.address)
        else:
            port = server.add_secure_port(options.address, credentials)
    except RuntimeError as error:
        raise _bind_error(options) from error
    if port == 0:
        raise _bind_error(options)
    return port


def _bind_error(options: RpcOptions) -> ConfigError:
    return ConfigError(
        f"cannot listen on {options.address}: the port is in use or the address is not local; "
        "choose another with --grpc-port or --host"
    )
