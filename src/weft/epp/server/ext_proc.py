"""Converts Envoy's ext_proc messages to values and back, without side effects. No other module of this package uses the
messages' types.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from weft.core.headers import DROPPED_REASON, SUBSET_HINT, SUBSET_NAMESPACE
from weft.epp.request.values import Refused
from weft.pb.ext_proc_core_pb2 import HeaderMap, HeaderValue, HeaderValueOption, Metadata
from weft.pb.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    BodySendMode,
    CommonResponse,
    GrpcStatus,
    HeaderMutation,
    HeadersResponse,
    HttpHeaders,
    HttpTrailers,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from weft.pb.ext_proc_type_pb2 import HttpStatus

# Other modules of this package import protobuf types from here only.
__all__ = ["ProcessingRequest", "ProcessingResponse"]

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = "Process"
METADATA_NAMESPACE: Final = "envoy.lb"
# Envoy limits a piece of a streamed body to 64 KiB; the reference stays below this limit as well.
MAX_PIECE_BYTES: Final = 62_000
MAX_LAST_PIECE_BYTES: Final = 8_000
FULL_DUPLEX: Final = BodySendMode.FULL_DUPLEX_STREAMED
BUFFERED: Final = BodySendMode.BUFFERED
STREAMED: Final = BodySendMode.STREAMED

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_TRAILERS: Final = TrailersResponse()
# The answer to nearly every piece of a response. It is shared, so nobody may change it.
_UNCHANGED: Final = ProcessingResponse(response_body=BodyResponse(response=CommonResponse()))
_UNCHANGED_BYTES: Final = _UNCHANGED.SerializeToString()
# HTTP status to gRPC status, for gRPC callers.
_GRPC: Final = MappingProxyType(
    {400: 3, 404: 5, 412: 9, 413: 8, 415: 12, 429: 8, 431: 8, 500: 13, 503: 14, 504: 4}
)
# Maximum number of endpoints in a subset hint; reading this many takes a few milliseconds.
_MAX_SUBSET: Final = 8192
_MAX_SUBSET_CHARS: Final = 256 * 2**10
_MAX_MESSAGE: Final = 2000  # a gRPC status message is sent as a header


class Undecodable:
    """Marks bytes that are not a valid message, so that the stream can report the error: for an exception, gRPC would
    answer UNKNOWN.
    """


def decode(data: bytes) -> ProcessingRequest | Undecodable:
    """Returns the message of the gateway in `data`."""
    try:
        return ProcessingRequest.FromString(data)
    except DecodeError:
        return Undecodable()


def encode(answer: ProcessingResponse) -> bytes:
    """Returns the bytes of a response message."""
    return _UNCHANGED_BYTES if answer is _UNCHANGED else answer.SerializeToString()


# ---- From the gateway ------------------------------------------------------------------------------


def read_headers(message: HttpHeaders, most: int | None = None) -> dict[str, str]:
    """Returns the headers by lower-case name. Values of a repeated name are joined. Reads at most the first `most`
    headers.
    """
    return _to_dict(message.headers, most)


def read_trailers(message: HttpTrailers) -> dict[str, str]:
    """Returns the trailers by lower-case name."""
    return _to_dict(message.trailers)


# Shared strings for the names that nearly all requests have: thousands of requests may wait.
_NAMES: Final = {
    name: name
    for name in (
        ":authority", ":method", ":path", ":scheme", "accept", "accept-encoding", "authorization",
        "content-length", "content-type", "traceparent", "user-agent", "x-envoy-expected-rq-timeout-ms",
        "x-forwarded-for", "x-forwarded-proto", "x-llm-d-inference-fairness-id",
        "x-llm-d-inference-objective", "x-request-id",
    )
}  # fmt: skip


def _to_dict(message: HeaderMap, most: int | None = None) -> dict[str, str]:
    headers: dict[str, list[str]] = {}
    for header in islice(message.headers, most):
        raw = header.raw_value  # a gateway before 1.27 sends a string
        value = raw.decode("utf-8", "replace") if raw else header.value
        name = header.key.lower()
        headers.setdefault(_NAMES.get(name, name), []).append(value)
    return {key: ", ".join(values) for key, values in headers.items()}


def headers_size(message: HttpHeaders) -> int:
    """Returns the number of bytes that the headers take in HTTP."""
    return message.headers.ByteSize()


def announced_length(headers: Mapping[str, str]) -> int:
    """The length of the body that a client announces; 0 if there is none or it is invalid."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def read_subset(metadata: Metadata) -> tuple[str, ...] | None:
    """Returns the endpoints that the gateway allows; None if it does not restrict them, () if it allows none. Raises
    `Refused` if there are too many.
    """
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET_HINT not in fields:
        return None
    hint = fields[SUBSET_HINT]
    if hint.WhichOneof("kind") == "string_value":
        # Some gateways send one string with commas; the protocol defines a list.
        _check_subset(len(hint.string_value), _MAX_SUBSET_CHARS, "characters")
        return tuple(part for name in hint.string_value.split(",") if (part := name.strip()))
    _check_subset(len(hint.list_value.values), _MAX_SUBSET, "endpoints")
    return tuple(
        name
        for item in hint.list_value.values
        if item.WhichOneof("kind") == "string_value" and (name := item.string_value.strip())
    )


def _check_subset(count: int, most: int, unit: str) -> None:
    if count > most:
        raise Refused(431, f"the subset hint has more than {most} {unit}")


# ---- To the gateway --------------------------------------------------------------------------------


def request_headers(
    set_headers: Mapping[str, str],
    remove_headers: Iterable[str],
    metadata: Mapping[str, Any] | None,
) -> ProcessingResponse:
    """Returns the message that lets a request continue."""
    common = CommonResponse(
        header_mutation=_mutation(set_headers, remove_headers), clear_route_cache=True
    )
    answer = ProcessingResponse(request_headers=HeadersResponse(response=common))
    if metadata:
        answer.dynamic_metadata.CopyFrom(to_struct({METADATA_NAMESPACE: metadata}))
    return answer


def held_headers() -> ProcessingResponse:
    """Returns the response to the headers of a request whose body Envoy holds: Envoy then sends the body to the picker
    before the request continues.
    """
    return ProcessingResponse(request_headers=HeadersResponse(response=CommonResponse()))


def held_body() -> ProcessingResponse:
    """Returns the response to a body that Envoy holds: the body continues unchanged."""
    return ProcessingResponse(request_body=BodyResponse(response=CommonResponse()))


def with_held_body(
    head: ProcessingResponse, body: Sequence[bytes] | None, *, is_sized: bool
) -> ProcessingResponse:
    """Converts the message of `request_headers` to the response to a buffered body; `body` replaces the request's body.

    Envoy refuses a body whose length differs from the Content-Length header, if there is one.
    """
    common = head.request_headers.response
    if body is not None:
        common.body_mutation.body = b"".join(body)
        if is_sized:
            length = {"content-length": str(len(common.body_mutation.body))}
            common.header_mutation.MergeFrom(_mutation(length, ()))
    answer = ProcessingResponse(request_body=BodyResponse(response=common))
    answer.dynamic_metadata.CopyFrom(head.dynamic_metadata)
    return answer


def response_headers(set_headers: Mapping[str, str]) -> ProcessingResponse:
    """Returns the message that sends a response's headers to the client."""
    common = CommonResponse(header_mutation=_mutation(set_headers, ()))
    return ProcessingResponse(response_headers=HeadersResponse(response=common))


def request_body(body: Sequence[bytes], *, is_last: bool) -> Iterator[ProcessingResponse]:
    """Yields the messages with a part of a request's body, in pieces that Envoy accepts.

    The last piece of a large body is empty, so that Envoy reads it together with the end of the stream, with nothing in
    between.
    """
    num_bytes = sum(map(len, body))
    if num_bytes <= MAX_PIECE_BYTES:
        body = (b"".join(body),)
    is_split = is_last and num_bytes > MAX_LAST_PIECE_BYTES
    for chunk in body:
        for piece, is_last_piece in pieces(chunk, is_last=is_last and not is_split):
            yield ProcessingResponse(request_body=_body(piece, is_last=is_last_piece))
    if is_split:
        yield ProcessingResponse(request_body=_body(b"", is_last=True))


def response_body(
    body: bytes, *, is_last: bool, metadata: Mapping[str, Any] | None = None
) -> Iterator[ProcessingResponse]:
    """Yields the messages with a part of a response's body. `metadata`, by namespace, is sent with the last piece."""
    answer = None
    for piece, is_last_piece in pieces(body, is_last=is_last):
        if answer is not None:
            yield answer
        answer = ProcessingResponse(response_body=_body(piece, is_last=is_last_piece))
    if answer is not None:
        add_metadata(answer, metadata)
        yield answer


def retained_response_body(
    body: bytes | None, metadata: Mapping[str, Any] | None = None
) -> ProcessingResponse:
    """The answer to a piece of a response that the gateway keeps. `body` replaces the piece unless it is None."""
    if body is None and not metadata:
        return _UNCHANGED
    common = CommonResponse()
    if body is not None:
        common.body_mutation.body = body
    answer = ProcessingResponse(response_body=BodyResponse(response=common))
    add_metadata(answer, metadata)
    return answer


def nothing() -> ProcessingResponse:
    """A message without effect, for a stream that ends while no message of the gateway waits for an answer.

    Envoy ignores a timeout of 0.
    """
    answer = ProcessingResponse()
    answer.override_message_timeout.SetInParent()
    return answer


def request_trailers() -> ProcessingResponse:
    """Returns the message that passes a request's trailers on, unchanged."""
    return ProcessingResponse(request_trailers=_TRAILERS)


def response_trailers(metadata: Mapping[str, Any] | None = None) -> ProcessingResponse:
    """Returns the message that passes a response's trailers on, unchanged."""
    answer = ProcessingResponse(response_trailers=_TRAILERS)
    add_metadata(answer, metadata)
    return answer


def immediate(
    status: int, body: str, headers: Mapping[str, str], grpc_status: int | None
) -> ProcessingResponse:
    """Returns the message with which Envoy answers the client instead of routing the request. `grpc_status` is for gRPC
    clients only.
    """
    response = ImmediateResponse(
        status=HttpStatus(code=status), headers=_mutation(headers, ()), body=body.encode()
    )
    if grpc_status is not None:
        response.grpc_status.CopyFrom(GrpcStatus(status=grpc_status))
    return ProcessingResponse(immediate_response=response)


def refusal(refused: Refused, *, is_grpc: bool) -> ProcessingResponse:
    """Returns the message with the error for the client: an HTTP status with a sentence, or a gRPC status, which Envoy
    sends as trailers.
    """
    headers = {} if is_grpc else {"content-type": "text/plain; charset=utf-8"}
    if refused.reason is not None:
        headers[DROPPED_REASON] = refused.reason.value
    if refused.retry_after_s is not None:
        headers["retry-after"] = str(refused.retry_after_s)
    return immediate(
        refused.status,
        f"inference error: {refused.word} - {refused.message}"[:_MAX_MESSAGE],
        headers,
        _GRPC.get(refused.status, 2) if is_grpc else None,
    )


def pieces(body: bytes, *, is_last: bool) -> Iterator[tuple[bytes, bool]]:
    """Splits data into pieces that Envoy accepts; the flag marks the last piece. Empty data is yielded only as the last
    piece.
    """
    if len(body) <= MAX_PIECE_BYTES:
        if body or is_last:
            yield body, is_last
        return
    view = memoryview(body)
    for start in range(0, len(body), MAX_PIECE_BYTES):
        end = start + MAX_PIECE_BYTES
        yield bytes(view[start:end]), is_last and end >= len(body)


def add_metadata(answer: ProcessingResponse, metadata: Mapping[str, Any] | None) -> None:
    """Sets the dynamic metadata of a message, by namespace."""
    if metadata:
        answer.dynamic_metadata.CopyFrom(to_struct(metadata))


def to_struct(values: Mapping[str, Any]) -> Struct:
    """Converts plain values to a protobuf Struct."""
    struct = Struct()
    for key, value in values.items():
        _set_value(struct.fields[key], value)
    return struct


def _set_value(field: Value, value: Any) -> None:
    """Writes one value. A value that JSON cannot represent is written as text."""
    match value:
        case None:
            field.null_value = 0  # type: ignore[assignment]
        case bool():
            field.bool_value = value
        case int() | float():
            field.number_value = value
        case str():
            field.string_value = value
        case Mapping():
            field.struct_value.CopyFrom(to_struct({str(k): v for k, v in value.items()}))
        case list() | tuple():
            field.list_value.SetInParent()
            for item in value:
                _set_value(field.list_value.values.add(), item)
        case _:
            field.string_value = str(value)


def _mutation(set_headers: Mapping[str, str], remove_headers: Iterable[str]) -> HeaderMutation:
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(
                header=HeaderValue(key=key, raw_value=value.encode("utf-8", "replace")),
                append_action=_OVERWRITE,
            )
            for key, value in set_headers.items()
        ],
        remove_headers=remove_headers,
    )


def _body(body: bytes, *, is_last: bool) -> BodyResponse:
    streamed = StreamedBodyResponse(body=body, end_of_stream=is_last)
    return BodyResponse(
        response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))
    )
