"""The gRPC server: ports, credentials, limits, health and shutdown."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

import grpc

from weft.core.aio.tasks import every
from weft.core.client import EngineClient
from weft.core.config.engine import ModelConfig
from weft.core.errors import ConfigError, EngineDead
from weft.core.observe.tracing import Tracer
from weft.core.tenants import ApiKeys
from weft.core.values.media import MAX_BYTES
from weft.rpc.auth import KeyGate, Keys
from weft.rpc.boundary import merged_signals
from weft.rpc.calls.reflection import reflection_handlers
from weft.rpc.calls.service import Service, is_alive
from weft.rpc.methods import METHODS_BY_SERVICE
from weft.rpc.options import RpcOptions
from weft.rpc.prefiller import RpcPrefiller
from weft.wire.health import HEALTH_SERVICE, Health
from weft.wire.ports import ChannelArgs, bind, server_args
from weft.wire.tls import Pem, server_credentials

log = logging.getLogger("weft.rpc")

_MIN_MESSAGE_BYTES = 8 * 2**20
_BYTES_PER_TOKEN = 12  # at most five bytes for the id, plus the text
# Time that aborted streams get to write their last message, after the drain timeout.
_ABORT_GRACE_S = 5.0
# Time that calls without an end of their own (watches, event streams) get when the server stops.
_STOP_GRACE_S = 0.2


class RpcServer:
    """Serves an `EngineClient` over gRPC. Created, started and stopped on one event loop."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer_files: Mapping[str, bytes],
        options: RpcOptions,
        tracer: Tracer | None = None,
        prefiller: RpcPrefiller | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._health = Health(("", *METHODS_BY_SERVICE))
        self._keys = Keys(
            ApiKeys(options.api_keys, options.api_key_file, salts=options.salt_by_key),
            options.control_api_keys,
            is_health_check_open=options.open_health_check,
            hides_cached_tokens=options.hide_cached_tokens,
        )
        self.service = Service(client, tokenizer_files, self._health, self._keys, options, tracer)
        self.service.generate.prefiller = prefiller
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Starts the server and returns the bound port; raises `ConfigError` if the server cannot listen."""
        for flag, keys in (
            ("--api-key", self._options.api_keys),
            ("--control-api-key", self._options.control_api_keys),
        ):
            if not all(keys):
                raise ConfigError(f"{flag}: a key must not be empty")
        has_keys = self._options.has_api_keys or bool(self._options.control_api_keys)
        with merged_signals(asyncio.get_running_loop()):
            server = grpc.aio.server(
                interceptors=(KeyGate(self._keys),) if has_keys else (),
                options=_to_channel_args(self._options, self._client.model_config),
                maximum_concurrent_rpcs=self._options.max_concurrent_calls,
            )
        server.add_generic_rpc_handlers((*self.service.handlers(), self._health.handler()))
        if self._options.reflection:
            server.add_generic_rpc_handlers(
                reflection_handlers((*METHODS_BY_SERVICE, HEALTH_SERVICE))
            )
        port = bind(server, self._options.address, credentials(self._options), flag="--grpc-port")
        await server.start()
        self._server = server
        self._health.set_serving(await is_alive(self._client))
        self._watch = asyncio.create_task(self._watch_engine(), name="weft-rpc-health")
        log.info("gRPC server listens on %s (port %d)", self._options.address, port)
        if self._options.has_api_keys and not self._options.open_health_check:
            log.info(
                "HealthCheck needs a key, which gateways may not send: --grpc-open-health-check opens it "
                "(grpc.health.v1 needs none)"
            )
        return port

    def set_not_serving(self) -> None:
        """Reports unhealthy at once, so that no new requests arrive; open calls continue."""
        if self._watch is not None:
            self._watch.cancel()
        self._health.set_serving(False)

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets open ones finish for `timeout_s`, aborts the rest, then stops."""
        self.set_not_serving()
        self.service.generate.close()
        requests = self.service.generate.in_flight
        if not await requests.wait_idle(timeout_s):
            # Aborted in the engine instead of cancelled here, so that each caller gets its last message.
            log.warning("aborting %d requests that did not finish in time", len(requests.ids))
            with suppress(EngineDead):
                await self._client.abort(requests.ids)
            await requests.wait_idle(_ABORT_GRACE_S)
        await self.stop()

    async def stop(self) -> None:
        """Ends every call, and stops listening. Idempotent."""
        self.set_not_serving()
        self.service.generate.close()
        await self.service.fingerprints.close()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(_STOP_GRACE_S)

    async def _watch_engine(self) -> None:
        """Makes the health follow the engine: a dead engine shows after `health_interval_s` plus at most a second."""

        async def look() -> None:
            self._health.set_serving(await is_alive(self._client))

        await every(self._options.health_interval_s, look)


def _to_channel_args(options: RpcOptions, model: ModelConfig) -> ChannelArgs:
    max_message_bytes = options.max_message_bytes
    if max_message_bytes is None:
        max_message_bytes = max(_MIN_MESSAGE_BYTES, _BYTES_PER_TOKEN * model.max_model_len)
        max_message_bytes += 0 if model.media is None else MAX_BYTES
    return server_args(
        max_calls=options.max_concurrent_calls,
        max_streams=options.max_concurrent_streams,
        max_receive_bytes=max_message_bytes,
        max_metadata_bytes=options.max_metadata_bytes,
        handshake_timeout_s=options.handshake_timeout_s,
        shares_port=options.shares_port,
    )


def credentials(options: RpcOptions) -> grpc.ServerCredentials | None:
    """Credentials for TLS; None without files. Raises `ConfigError` that names the flag."""
    cert, key, client_ca = options.tls_cert, options.tls_key, options.tls_client_ca
    if cert is None or key is None:
        if cert or key or client_ca:
            raise ConfigError("TLS needs both --grpc-tls-cert and --grpc-tls-key")
        return None
    return server_credentials(
        Pem("--grpc-tls-cert", cert),
        Pem("--grpc-tls-key", key),
        None if client_ca is None else Pem("--grpc-tls-client-ca", client_ca),
    )
