"""`grpc.health.v1`: whether the server serves, asked once or watched."""

import asyncio
from typing import Any

from grpc import GenericRpcHandler, method_handlers_generic_handler
from grpc_health.v1 import health_pb2

from weft.core.errors import NotFound
from weft.rpc import boundary
from weft.rpc.methods import SERVICE, Malformed, decode_or_malformed

HEALTH_SERVICE = "grpc.health.v1.Health"
_SERVICES = ("", SERVICE)

_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
_NOT_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
_UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)


class Health:
    """One state for every service name of this server. One event loop owns it."""

    def __init__(self) -> None:
        self._is_serving = False
        self._changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """What callers are told."""
        return self._is_serving

    def set_serving(self, is_serving: bool) -> None:
        """Tell every watcher, and everyone who asks from now on."""
        if is_serving == self._is_serving:
            return
        self._is_serving = is_serving
        # Watchers hold the event they wait for; a fresh one is there before they wake.
        self._changed, changed = asyncio.Event(), self._changed
        changed.set()

    def handler(self) -> "GenericRpcHandler[Any, Any]":
        """The service's calls."""
        return method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": boundary.unary("Health.Check", self._check, _decode_check),
                "List": boundary.unary("Health.List", self._list, _decode_list),
                "Watch": boundary.stream("Health.Watch", self._watch, _decode_check),
            },
        )

    def _response(self) -> health_pb2.HealthCheckResponse:
        return _SERVING if self._is_serving else _NOT_SERVING

    async def _check(
        self, request: health_pb2.HealthCheckRequest, _context: boundary.Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in _SERVICES:
            raise NotFound(f"service must be one of {list(_SERVICES)}")
        return self._response()

    async def _list(
        self, _request: health_pb2.HealthListRequest, _context: boundary.Context
    ) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(_SERVICES, self._response()))

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, context: boundary.Context
    ) -> None:
        """Write the state now and after each change, until the caller leaves or the server stops."""
        is_known = request.service in _SERVICES
        last = None
        while True:
            changed = self._changed
            response = self._response() if is_known else _UNKNOWN
            if response is not last:
                await context.write(response)
                last = response
            await changed.wait()


def _decode_check(data: bytes) -> health_pb2.HealthCheckRequest | Malformed:
    return decode_or_malformed(health_pb2.HealthCheckRequest, data)


def _decode_list(data: bytes) -> health_pb2.HealthListRequest | Malformed:
    return decode_or_malformed(health_pb2.HealthListRequest, data)
