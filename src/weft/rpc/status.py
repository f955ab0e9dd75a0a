"""The one table between our error codes and gRPC statuses, and its inverse for the client."""

from grpc import StatusCode

from weft.core.errors import (
    AlreadyExists,
    BadRequest,
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    GenerationError,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unsupported,
    WeftError,
)

# A status travels in a header line, and clients refuse long ones.
MAX_DETAIL_CHARS = 1000

_STATUS_BY_CODE = {
    Code.INVALID: StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: StatusCode.NOT_FOUND,
    Code.ALREADY_EXISTS: StatusCode.ALREADY_EXISTS,
    Code.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Code.PRECONDITION: StatusCode.FAILED_PRECONDITION,
    Code.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    Code.DEADLINE: StatusCode.DEADLINE_EXCEEDED,
    Code.UNAVAILABLE: StatusCode.UNAVAILABLE,
    Code.UNSUPPORTED: StatusCode.UNIMPLEMENTED,
    Code.INTERNAL: StatusCode.INTERNAL,
}

_ERROR_BY_STATUS: dict[StatusCode, type[WeftError]] = {
    StatusCode.NOT_FOUND: NotFound,
    StatusCode.ALREADY_EXISTS: AlreadyExists,
    StatusCode.UNAUTHENTICATED: Unauthenticated,
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
    """The text of `error`, cut to what a status line can carry."""
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 1] + "…"


def to_error(status: StatusCode, detail: str) -> WeftError:
    """The error a client raises for an answer of `status`."""
    if status is StatusCode.INVALID_ARGUMENT:
        return BadRequest(None, detail)
    return _ERROR_BY_STATUS.get(status, GenerationError)(detail)
