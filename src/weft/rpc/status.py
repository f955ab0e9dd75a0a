"""The table of Weft's error codes and gRPC statuses, and its inverse for the client."""

from collections.abc import Iterable
from typing import Any

from grpc import StatusCode

from weft.core.errors import (
    AlreadyExists,
    BadRequest,
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    Forbidden,
    GenerationError,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unsupported,
    WeftError,
)

# A status is sent in a header, and clients refuse long headers.
MAX_DETAIL_CHARS = 1000
# Sent with a refusal: the invalid field, for clients that show it separately from the text.
PARAMETER_METADATA = "x-weft-parameter-bin"
_MAX_NAME_CHARS = 200

_STATUS_BY_CODE = {
    Code.INVALID: StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: StatusCode.NOT_FOUND,
    Code.ALREADY_EXISTS: StatusCode.ALREADY_EXISTS,
    Code.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Code.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    Code.PRECONDITION: StatusCode.FAILED_PRECONDITION,
    Code.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    Code.DEADLINE: StatusCode.DEADLINE_EXCEEDED,
    Code.UNAVAILABLE: StatusCode.UNAVAILABLE,
    Code.UNSUPPORTED: StatusCode.UNIMPLEMENTED,
    Code.INTERNAL: StatusCode.INTERNAL,
}

_ERROR_BY_STATUS: dict[StatusCode, type[WeftError]] = {
    StatusCode.ALREADY_EXISTS: AlreadyExists,
    StatusCode.UNAUTHENTICATED: Unauthenticated,
    StatusCode.PERMISSION_DENIED: Forbidden,
    StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    StatusCode.UNAVAILABLE: Unavailable,
    StatusCode.UNIMPLEMENTED: Unsupported,
}


def to_status(code: Code) -> StatusCode:
    """The gRPC status of `code`."""
    return _STATUS_BY_CODE[code]


def to_detail(error: WeftError) -> str:
    """The text of `error`, cut to the length of a status line."""
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 1] + "…"


def to_trailing(error: WeftError) -> tuple[tuple[str, bytes], ...]:
    """Returns the trailing metadata of an error: the name of the field at fault, if there is one."""
    name = getattr(error, "parameter", None)
    if not name:
        return ()
    return ((PARAMETER_METADATA, str(name)[:_MAX_NAME_CHARS].encode(errors="replace")),)


def to_error(status: StatusCode, detail: str, trailing: Iterable[Any] = ()) -> WeftError:
    """Returns the exception that a client raises for `status`; `trailing` is the trailing metadata as pairs of name and
    value.
    """
    named = (value for name, value in trailing if name == PARAMETER_METADATA)
    value = next(named, None)
    parameter = value.decode(errors="replace") if isinstance(value, bytes) else value
    if status is StatusCode.INVALID_ARGUMENT:
        return BadRequest(parameter, detail)
    if status is StatusCode.NOT_FOUND:
        return NotFound(detail, parameter)
    return _ERROR_BY_STATUS.get(status, GenerationError)(detail)
