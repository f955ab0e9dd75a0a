"""`GrpcServer`: listens for gRPC clients, finds the handlers of their calls, and stops with a time limit."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, Final

import grpc

from weft.core.address import join_host_port
from weft.core.errors import ConfigError
from weft.epp.server.http2.gateway_connection import CallLimits, GatewayConnection

_BACKLOG: Final = 1024
_LOOK_S: Final = 0.02
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound by default


class GrpcServer:
    """A gRPC server on one event loop. Its handlers are those of `grpc`, whose own server could run them too.

    The picker has a server of its own because `grpc.aio` takes several times the processor time for a message
    (docs/decisions/0128).
    """

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._handlers: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._known: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._server: asyncio.Server | None = None
        self.connections: set[GatewayConnection] = set()

    @property
    def num_calls(self) -> int:
        """Number of calls of all connections."""
        return sum(connection.num_calls for connection in self.connections)

    def add(self, handler: "grpc.GenericRpcHandler[Any, Any]") -> None:
        """Serves the calls of `handler` too."""
        self._handlers.append(handler)

    def find(self, method: str) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Returns the handler of a method, as "/package.Service/Method"; None if there is none."""
        found = self._known.get(method)
        if found is None:
            details = _Details(method)
            handlers = (each.service(details) for each in self._handlers)
            found = next((handler for handler in handlers if handler is not None), None)
            if found is not None:
                self._known[method] = found
        return found

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None, *, flag: str) -> int:
        """Listens, and returns the port. Raises a `ConfigError` that names `flag` if the port cannot be bound."""
        timeout_s = None if tls is None else self._limits.handshake_timeout_s
        try:
            listening = _listening(host.strip("[]"), port)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: GatewayConnection(self, self._limits),
                sock=listening,
                ssl=tls,
                ssl_handshake_timeout=timeout_s,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {join_host_port(host, port)}: the port is in use or the address is not local; "
                f"choose another with {flag} or --host"
            ) from error
        return int(listening.getsockname()[1])

    async def _idle(self) -> None:
        """Waits until no call is left."""
        while self.num_calls:  # noqa: ASYNC110 - calls end in many places, and a server stops once
            await asyncio.sleep(_LOOK_S)

    async def stop(self, grace_s: float) -> None:
        """Stops listening, gives the present calls `grace_s` seconds, and ends the others with an error."""
        if self._server is None:
            return
        self._server.close()
        for connection in self.connections:
            connection.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle()
        for connection in list(self.connections):
            connection.fail_calls()
        with suppress(TimeoutError):  # handlers that do not end when they are cancelled
            async with asyncio.timeout(grace_s):
                await self._idle()
        for connection in list(self.connections):
            connection.close()


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; on all addresses of both families if `host` is the wildcard of either."""
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        with suppress(OSError):  # a system without IPv6
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


class _Details(grpc.HandlerCallDetails):
    """The name of a call, for handlers that are asked for it."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()
