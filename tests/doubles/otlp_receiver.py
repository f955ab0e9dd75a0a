"""A collector of traces: the service that OpenTelemetry's own protocol describes, and what came of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.busy import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Received:
    """One span, in plain values."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    error: str | None
    started_ns: int
    ended_ns: int


class Receiver(TraceServiceServicer):
    """Keeps all spans. `address` is where it listens."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Received] = []
        self._came = asyncio.Event()

    async def Export(self, request, context):  # noqa: N802 - its name on the wire
        """One batch."""
        self.take(request)
        return pb.ExportTraceServiceResponse()

    def take(self, request) -> None:
        """Keep what a batch holds."""
        for of_resource in request.resource_spans:
            service = _plain(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [_received(service, span) for span in of_scope.spans]
        self._came.set()

    async def named(self, *names: str, trace_id: str) -> dict[str, Received]:
        """The spans of a trace by name, once all these have come."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._came.clear()
                found = {span.name: span for span in self.of(trace_id)}
                if found.keys() >= set(names):
                    return found
                await self._came.wait()

    def of(self, trace_id: str) -> list[Received]:
        """The spans of a trace."""
        return [span for span in self.spans if span.trace_id == trace_id]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A collector that listens."""
    receiver = Receiver()
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(0)


def _received(service: str, span) -> Received:
    is_error = span.status.code == Status.STATUS_CODE_ERROR
    return Received(
        service=service,
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_plain(span.attributes),
        error=span.status.message if is_error else None,
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
    )


def _plain(attributes) -> dict[str, Any]:
    plain = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        if kind == "array_value":
            value = [one.string_value for one in value.values]
        plain[attribute.key] = value
    return plain
