"""Health of each gRPC service (`grpc.health.v1`), by single checks or watching.

This module replaces the health servicer of the grpc library. That servicer holds a lock while it writes to a watcher,
so that a watcher that does not read blocks every change; and it has no List call.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import GenericRpcHandler, method_handlers_generic_handler
from grpc_health.v1 import health_pb2

HEALTH_SERVICE = "grpc.health.v1.Health"

_Context = grpc.aio.ServicerContext[Any, Any]
_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
_NOT_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
_UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)


class Health:
    """The health of each service in `services`; all are not serving at first. Owned by one event loop.

    With `knows_all`, unknown services have the state of the service "".
    """

    def __init__(self, services: Iterable[str], *, knows_all: bool = False) -> None:
        self._response_by_service = dict.fromkeys(services, _NOT_SERVING)
        self._knows_all = knows_all
        self._changed = asyncio.Event()

    def is_serving(self, service: str = "") -> bool:
        """Returns the state that callers see."""
        return self._response_by_service[service] is _SERVING

    def set_serving(self, is_serving: bool, services: Iterable[str] | None = None) -> None:
        """Sets the state of the named services, or of all services, and notifies every watcher."""
        response = _SERVING if is_serving else _NOT_SERVING
        for service in self._response_by_service if services is None else services:
            self._response_by_service[service] = response
        # Watchers wait for the old event; the new one is in place before they wake.
        self._changed, changed = asyncio.Event(), self._changed
        changed.set()

    def handler(self) -> "GenericRpcHandler[Any, Any]":
        """Returns the handler of the health service's calls."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": unary(self._check, _decode, _encode),
                "List": unary(self._list, None, _encode),
                "Watch": stream(self._watch, _decode, _encode),
            },
        )

    async def _check(self, service: str | None, context: _Context) -> Any:
        return self._response_by_service[await self._known(service, context)]

    async def _list(self, _request: bytes, _context: _Context) -> Any:
        return health_pb2.HealthListResponse(statuses=self._response_by_service)

    async def _watch(self, service: str | None, context: _Context) -> None:
        """Sends the state now and after each change, until the caller disconnects or the server stops."""
        if service is None:
            await self._known(service, context)
        last = None
        while True:
            changed = self._changed
            response = self._response_by_service.get(self._listed(service or ""), _UNKNOWN)
            if response is not last:
                await context.write(response)
                last = response
            await changed.wait()

    def _listed(self, service: str) -> str:
        return "" if self._knows_all and service not in self._response_by_service else service

    async def _known(self, service: str | None, context: _Context) -> str:
        if service is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the request is not a valid HealthCheckRequest message",
            )
        service = self._listed(service)
        if service not in self._response_by_service:
            known = list(self._response_by_service)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service must be one of {known}")
        return service


def _decode(data: bytes) -> str | None:
    """Returns the service that the request names; None for an invalid message. For an exception, gRPC would answer
    UNKNOWN.
    """
    try:
        return str(health_pb2.HealthCheckRequest.FromString(data).service)
    except DecodeError:
        return None


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
