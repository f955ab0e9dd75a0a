"""Bearer keys: default-deny for every call but `grpc.health.v1`, which orchestrators probe without one."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServerInterceptor

from weft.core.errors import Unauthenticated
from weft.core.keys import KeyRing, bearer_key
from weft.rpc.health import HEALTH_SERVICE
from weft.rpc.status import to_status

_OPEN_PREFIX = f"/{HEALTH_SERVICE}/"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class BearerAuth(ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets a call through if its `authorization` metadata is `Bearer` and one of `keys`."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = KeyRing(keys)

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
        key = bearer_key(header.encode() if isinstance(header, str) else header)
        return key is not None and self._keys.is_valid(key)


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        to_status(Unauthenticated.code),
        "a key is needed: send the metadata authorization: Bearer KEY",
    )
