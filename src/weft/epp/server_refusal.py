"""Refusals as the client sees them: an HTTP status and a sentence, or a gRPC status."""

from types import MappingProxyType
from typing import Final

from weft.epp import wire
from weft.epp.request import Refused
from weft.epp.wire import ProcessingResponse
from weft.epp.wire_headers import DROPPED_REASON

# HTTP status to the word in the body, and to gRPC's number for callers that speak it.
_WORDS: Final = MappingProxyType({
    400: ("BadRequest", 3),
    404: ("NotFound", 5),
    412: ("PreconditionFailed", 9),
    413: ("PayloadTooLarge", 8),
    429: ("ResourceExhausted", 8),
    431: ("BadRequest", 8),
    500: ("Internal", 13),
    503: ("ServiceUnavailable", 14),
    504: ("Timeout", 4),
})  # fmt: skip
_MAX_MESSAGE: Final = 2000  # a gRPC status message travels in a header


def to_answer(refused: Refused, *, is_grpc: bool) -> ProcessingResponse:
    """The immediate response. Envoy turns it into trailers for a gRPC client."""
    word, grpc_status = _WORDS.get(refused.status, ("Unknown", 2))
    headers = {} if is_grpc else {"content-type": "text/plain; charset=utf-8"}
    if refused.reason is not None:
        headers[DROPPED_REASON] = refused.reason.value
    return wire.immediate(
        refused.status,
        f"inference error: {word} - {refused.message}"[:_MAX_MESSAGE],
        headers,
        grpc_status if is_grpc else None,
    )
