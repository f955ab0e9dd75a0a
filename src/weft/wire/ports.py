"""Ports and channel options, the same wherever gRPC is used."""

import grpc

from weft.core.errors import ConfigError

ChannelArgs = list[tuple[str, int]]


def server_args(
    *,
    max_calls: int,
    max_streams: int,
    max_receive_bytes: int,
    max_metadata_bytes: int = 16 * 2**10,
    handshake_timeout_s: float = 10.0,
    shares_port: bool = False,
) -> ChannelArgs:
    """Limits of every gRPC server: `max_calls` calls at once, `max_streams` of them on one connection."""
    # Calls that nobody has taken up yet, about 15 kB each, those reset meanwhile among them. Beyond
    # this many core cancels what comes, from whichever connection, and its own 1,000 are fewer than one
    # connection may have: full of resets, one must leave room for the calls of the others.
    max_pending = max_calls + max_streams
    return [
        ("grpc.max_concurrent_streams", max_streams),
        # Between the first and the second of these it would cancel by chance.
        ("grpc.server.max_pending_requests", max_pending),
        ("grpc.server.max_pending_requests_hard_limit", max_pending),
        # A second server on the same port would silently take a part of the connections.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_metadata_size", max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", max_metadata_bytes),
        # TLS and the first frames; grpc's own two minutes are long for a descriptor that nobody uses.
        ("grpc.server_handshake_timeout_ms", int(handshake_timeout_s * 1000)),
        # Gateways ping idle connections, and long calls that are not streamed.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A peer that vanished without a word is noticed, and what is open for it ends.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def client_args(*, max_message_bytes: int) -> ChannelArgs:
    """Settings of every gRPC channel."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Long calls that are not streamed are silent; pings find out when the other side is gone. A server that sets
        # nothing ends a connection whose silent calls ping more often than this.
        ("grpc.keepalive_time_ms", 300_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None, *, flag: str
) -> int:
    """The port that `server` now listens on; `ConfigError` names `flag`, which chooses another."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ConfigError(
            f"cannot listen on {address}: the port is in use or the address is not local; "
            f"choose another with {flag} or --host"
        )
    return port
