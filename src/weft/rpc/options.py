"""Options of the gRPC server: address, keys, TLS and limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weft.core.address import join_host_port
from weft.core.values.declare import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOptions:
    """Settings of one gRPC server. `port` 0 lets the system choose; no keys of either kind mean no check.

    `open_health_check` lets `HealthCheck` be called without a key, as `grpc.health.v1` always can.

    `max_message_bytes` is the maximum size of a received message. None means the size of a full context of token ids
    with their text, at least 8 MiB, plus room for media if the model accepts media. A message is decoded in one piece,
    which blocks all other requests, so the limit should not be larger than needed.
    `max_total_message_bytes` limits the memory of all large requests together, as long as their calls are open.
    With `shares_port`, other processes of this server listen on the same port.
    `reasoning_parser` names the format of the model's reasoning: a constraint begins after the reasoning.
    """

    host: str = "127.0.0.1"
    port: Annotated[
        int, Flag("Port of the gRPC server; 0 takes a free one.", "Server", name="grpc_port")
    ] = 50051
    shares_port: bool = False
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    salt_by_key: bool = False
    hide_cached_tokens: bool = False
    control_api_keys: tuple[str, ...] = ()
    open_health_check: Annotated[
        bool,
        Flag(
            "Answer HealthCheck without an API key, because gateways send none. grpc.health.v1 never needs one.",
            "Server",
            name="grpc_open_health_check",
        ),
    ] = False
    tls_cert: Annotated[
        Path | None,
        Flag(
            "Certificate chain (PEM) of the gRPC server; enables TLS.",
            "Server",
            name="grpc_tls_cert",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Flag("Private key (PEM) of --grpc-tls-cert.", "Server", name="grpc_tls_key"),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Flag(
            "CA certificate (PEM) for client certificates, which clients must then present (mutual TLS).",
            "Server",
            name="grpc_tls_client_ca",
        ),
    ] = None
    reflection: Annotated[
        bool,
        Flag(
            "Enable gRPC server reflection, so that clients can list services.",
            "Server",
            name="grpc_reflection",
        ),
    ] = False
    max_message_bytes: int | None = None
    max_total_message_bytes: int = 256 * 2**20
    max_metadata_bytes: int = 16 * 2**10
    max_concurrent_streams: int = 1024
    max_concurrent_calls: int = 8192
    handshake_timeout_s: float = 10.0
    write_timeout_s: float = 60.0
    heartbeat_s: float = 1.0
    health_interval_s: float = 0.5
    reasoning_parser: str | None = None
    allow_runtime_lora_updating: bool = False

    @property
    def has_api_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_keys) or self.api_key_file is not None

    @property
    def address(self) -> str:
        """host:port, with an IPv6 host in brackets."""
        return join_host_port(self.host, self.port)
