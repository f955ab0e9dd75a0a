"""The trace span of one call, with OpenTelemetry's names for gRPC servers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from grpc import StatusCode

from weft.core.errors import WeftError
from weft.core.observe.log import REQUEST
from weft.core.observe.tracing import Tracer
from weft.rpc.methods import SERVICE
from weft.rpc.status import to_status

# Statuses that are failures of the server; other statuses are the caller's errors, and do not mark a server span as
# failed.
_FAILURES: Final = frozenset({
    StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNIMPLEMENTED, StatusCode.INTERNAL,
    StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS,
})  # fmt: skip


@contextmanager
def server_span(
    tracer: Tracer | None,
    method: str,
    request_id: str,
    headers: dict[str, str],
    service: str = SERVICE,
) -> Iterator[dict[str, str]]:
    """Runs a call inside a span, whose status follows from how the block is left. Yields headers for requests to
    other servers.
    """
    REQUEST.set((request_id, headers.get("traceparent")))
    if tracer is None:
        yield headers
        return
    span = tracer.begin(f"{service}/{method}", headers)
    span.set("rpc.system", "grpc")
    span.set("rpc.service", service)
    span.set("rpc.method", method)
    span.set("gen_ai.request.id", request_id)
    REQUEST.set((request_id, span.headers["traceparent"]))
    code = StatusCode.OK
    try:
        yield span.headers
    except WeftError as error:
        code = to_status(error.code)
        if code in _FAILURES:
            span.fail(code.name)
        raise
    except asyncio.CancelledError:
        code = StatusCode.CANCELLED
        span.fail("the client disconnected")
        raise
    except BaseException:
        code = StatusCode.INTERNAL
        span.fail(code.name)
        raise
    finally:
        span.set("rpc.grpc.status_code", code.value[0])
        span.end()
