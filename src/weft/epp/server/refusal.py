"""Refusals as the client sees them: an HTTP status and a sentence, or a gRPC status."""

from types import MappingProxyType
from typing import Final

from weft.epp.decision.request import Refused
from weft.epp.wire import ext_proc
from weft.epp.wire.ext_proc import ProcessingResponse
from weft.epp.wire.headers import DROPPED_REASON

# HTTP status to gRPC's number, for callers that speak it.
_GRPC: Final = MappingProxyType(
    {400: 3, 404: 5, 412: 9, 413: 8, 415: 12, 429: 8, 431: 8, 500: 13, 503: 14, 504: 4}
)
_MAX_MESSAGE: Final = 2000  # a gRPC status message travels in a header


def to_answer(refused: Refused, *, is_grpc: bool) -> ProcessingResponse:
    """The immediate response. Envoy turns it into trailers for a gRPC client."""
    headers = {} if is_grpc else {"content-type": "text/plain; charset=utf-8"}
    if refused.reason is not None:
        headers[DROPPED_REASON] = refused.reason.value
    return ext_proc.immediate(
        refused.status,
        f"inference error: {refused.word} - {refused.message}"[:_MAX_MESSAGE],
        headers,
        _GRPC.get(refused.status, 2) if is_grpc else None,
    )
