"""Bearer keys: default-deny for every call but `grpc.health.v1`, which orchestrators probe without one."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServerInterceptor

from weft.core.errors import Unauthenticated
from weft.rpc.health import HEALTH_SERVICE
from weft.rpc.status import to_status

_OPEN_PREFIX = f"/{HEALTH_SERVICE}/"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class BearerAuth(ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets a call through if its `authorization` metadata is `Bearer` and one of `keys`."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Decide before anything of the request is read; unknown methods are refused too."""
        if handler_call_details.method.startswith(_OPEN_PREFIX):
            return await continuation(handler_call_details)
        given = [
            value
            for name, value in handler_call_details.invocation_metadata
            if name == "authorization"
        ]
        if len(given) == 1 and self._is_valid(given[0]):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _is_valid(self, header: str | bytes) -> bool:
        text = header if isinstance(header, str) else header.decode("latin-1")
        scheme, _, key = text.partition(" ")
        digest = _digest(key.strip())
        # Every key is compared, in constant time: neither a match nor its place shows in the timing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        to_status(Unauthenticated.code),
        "a key is needed: send the metadata authorization: Bearer KEY",
    )
