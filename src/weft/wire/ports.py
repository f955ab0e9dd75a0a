"""Ports and channel options of all gRPC servers and clients."""

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
    """Returns the options of a gRPC server: at most `max_calls` concurrent calls, and `max_streams` of them on one
    connection.
    """
    # Maximum number of calls that wait to be handled, including calls that were reset; each takes about 15 kB. Above
    # this, gRPC core cancels new calls of any connection. Its default of 1,000 is less than one connection may have:
    # a connection full of resets must leave room for others.
    max_pending = max_calls + max_streams
    return [
        ("grpc.max_concurrent_streams", max_streams),
        # Between the first and the second limit, core would cancel calls at random.
        ("grpc.server.max_pending_requests", max_pending),
        ("grpc.server.max_pending_requests_hard_limit", max_pending),
        # With the option on, a second server on the same port would silently get part of the connections.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_metadata_size", max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", max_metadata_bytes),
        # For TLS and the first frames; grpc's default of two minutes holds an unused file descriptor too long.
        ("grpc.server_handshake_timeout_ms", int(handshake_timeout_s * 1000)),
        # Gateways send pings on idle connections, and during long calls that are not streamed.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Detects a peer that has vanished, and ends its calls.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def client_args(*, max_message_bytes: int) -> ChannelArgs:
    """Returns the options of a gRPC channel."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Long calls that are not streamed are silent; pings detect a dead server. A server with default settings
        # closes a connection that sends more pings than this.
        ("grpc.keepalive_time_ms", 300_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None, *, flag: str
) -> int:
    """Binds the server to an address and returns the port. Raises a `ConfigError` that names `flag`, with which the
    user can choose another port.
    """
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
