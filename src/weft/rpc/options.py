"""What one gRPC server is told to do."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from weft.core.address import join_host_port
from weft.core.errors import ConfigError
from weft.wire.tls import Pem, server_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOptions:
    """Settings of one gRPC server. `port` 0 lets the system choose; no keys of either kind mean no check.

    `open_health_check` lets `HealthCheck` be called without a key, as `grpc.health.v1` always can.

    `max_message_bytes` bounds what is received; None is what a context of token ids with their text
    takes, and 8 MiB at the least: more is decoded in one piece, in which nobody else is served.
    `reasoning_parser` names how the model writes thoughts: a constraint begins behind them.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    api_keys: tuple[str, ...] = ()
    control_api_keys: tuple[str, ...] = ()
    open_health_check: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    reflection: bool = False
    max_message_bytes: int | None = None
    max_metadata_bytes: int = 16 * 2**10
    max_concurrent_streams: int = 1024
    max_concurrent_calls: int = 8192
    handshake_timeout_s: float = 10.0
    write_timeout_s: float = 60.0
    heartbeat_s: float = 1.0
    health_interval_s: float = 0.5
    reasoning_parser: str | None = None

    @property
    def address(self) -> str:
        """host:port, with an IPv6 host in brackets."""
        return join_host_port(self.host, self.port)

    def credentials(self) -> grpc.ServerCredentials | None:
        """For TLS; None where no file is given. `ConfigError` names the flag at fault."""
        cert, key, client_ca = self.tls_cert, self.tls_key, self.tls_client_ca
        if cert is None or key is None:
            if cert or key or client_ca:
                raise ConfigError("TLS needs both --grpc-tls-cert and --grpc-tls-key")
            return None
        return server_credentials(
            Pem("--grpc-tls-cert", cert),
            Pem("--grpc-tls-key", key),
            None if client_ca is None else Pem("--grpc-tls-client-ca", client_ca),
        )
