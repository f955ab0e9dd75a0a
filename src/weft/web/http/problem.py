"""The table of Weft's error codes and HTTP: status, OpenAI's type and code, Anthropic's type.

Errors that occur outside of handlers (paths, sizes, keys) have rows by status.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.errors import (
    BadRequest,
    Code,
    ModelLoading,
    NotFound,
    RateLimited,
    WeftError,
    for_want_of_memory,
)
from weft.web.http.endpoint import Dialect

_INVALID = "invalid_request_error"  # the type in both dialects
_RETRY_SOON = {"retry-after": "1"}
# Retrying is useless: official clients read this header before their rule for 5xx statuses.
_NO_RETRY = {"x-should-retry": "false"}


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    openai_type: str
    openai_code: str | None
    anthropic_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


_ROW_BY_CODE = {
    Code.INVALID: _Row(400, _INVALID, None, _INVALID),
    Code.NOT_FOUND: _Row(404, "not_found_error", "model_not_found", "not_found_error"),
    Code.ALREADY_EXISTS: _Row(409, _INVALID, "already_exists", _INVALID),
    Code.UNAUTHENTICATED: _Row(
        401, "authentication_error", "invalid_api_key", "authentication_error"
    ),
    Code.FORBIDDEN: _Row(403, "permission_error", "forbidden", "permission_error"),
    Code.PRECONDITION: _Row(409, _INVALID, "failed_precondition", _INVALID, _NO_RETRY),
    Code.OVERLOADED: _Row(
        429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error", _RETRY_SOON
    ),
    Code.DEADLINE: _Row(504, "server_error", "timeout", "timeout_error"),
    Code.UNAVAILABLE: _Row(
        503, "server_error", "service_unavailable", "overloaded_error", _RETRY_SOON
    ),
    # Not a 5xx status: gateways count those as server faults, retry, and remove the server from the pool
    # (docs/decisions/0063).
    Code.UNSUPPORTED: _Row(400, _INVALID, "unsupported", _INVALID),
    Code.INTERNAL: _Row(500, "server_error", "internal_error", "api_error"),
}
_ROW_BY_STATUS = {
    row.status: row
    for row in (
        *_ROW_BY_CODE.values(),
        _Row(400, _INVALID, None, _INVALID),
        _Row(403, "permission_error", "forbidden", "permission_error"),
        _Row(404, _INVALID, "unknown_url", "not_found_error"),
        _Row(405, _INVALID, "method_not_allowed", _INVALID),
        _Row(408, _INVALID, "request_timeout", "timeout_error"),
        _Row(413, _INVALID, "request_too_large", "request_too_large"),
        _Row(415, _INVALID, "unsupported_media_type", _INVALID),
        # OpenAI's error for failures of tool servers.
        _Row(424, "external_connector_error", "http_error", "api_error"),
        _Row(431, _INVALID, "headers_too_large", "request_too_large"),
        _Row(503, "server_error", "service_unavailable", "overloaded_error", _RETRY_SOON),
    )
}
# Anthropic's clients treat 529 as "overloaded", and have no meaning for 503.
_ANTHROPIC_STATUS = {503: 529}


class HttpError(Exception):
    """An error of the HTTP layer, raised before or outside of a handler."""

    details: Mapping[str, Any] | None = None  # details for programs, in Anthropic's dialect

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
        parameter: str | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.code = code
        self.parameter = parameter
        self.dialect = dialect  # None: the dialect of the path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error in the form that callers get."""

    row: _Row
    message: str
    parameter: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] | None = None

    def status(self, dialect: Dialect) -> int:
        """The status to answer with."""
        status = self.row.status
        return _ANTHROPIC_STATUS.get(status, status) if dialect is Dialect.ANTHROPIC else status

    def body(self, dialect: Dialect, request_id: str) -> bytes:
        """The error object: a JSON answer's body, and an error event's data."""
        match dialect:
            case Dialect.OPENAI:
                return msgspec.json.encode(
                    OpenAiError(
                        error=OpenAiErrorDetail(
                            message=self.message,
                            type=self.row.openai_type,
                            param=self.parameter,
                            code=self.code,
                        )
                    )
                )
            case Dialect.ANTHROPIC:
                detail = AnthropicErrorDetail(
                    type=self.row.anthropic_type,
                    message=self.message,
                    details=UNSET if self.details is None else dict(self.details),
                )
                return msgspec.json.encode(AnthropicError(error=detail, request_id=request_id))
            case Dialect.OLLAMA:
                return msgspec.json.encode(OllamaError(error=self.message))
            case Dialect.COHERE:
                # The form has no place for the field's name but the message.
                has_name = self.parameter is None or self.parameter in self.message
                message = self.message if has_name else f"{self.parameter}: {self.message}"
                return msgspec.json.encode(CohereError(message=message, id=request_id))


class OpenAiErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Error object of OpenAI's APIs."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response in OpenAI's form."""

    error: OpenAiErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Error object of Anthropic's API."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response in Anthropic's form."""

    type: str = "error"
    error: AnthropicErrorDetail
    request_id: str


class OllamaError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response in Ollama's form."""

    error: str


class CohereError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response in Cohere's form."""

    message: str
    id: str


def to_problem(error: BaseException, request_id: str) -> Problem:
    """Converts `error` to a problem. For unexpected errors the text only says where to look."""
    error = for_want_of_memory(error) or error
    if isinstance(error, HttpError):
        row = _ROW_BY_STATUS[error.status]
        return Problem(
            row=row,
            message=str(error),
            parameter=error.parameter,
            code=error.code or row.openai_code,
            headers={**row.headers, **error.headers},
            details=error.details,
        )
    if not isinstance(error, WeftError):
        row = _ROW_BY_CODE[Code.INTERNAL]
        return Problem(row=row, message=f"internal error, id={request_id}", code=row.openai_code)
    row = _ROW_BY_CODE[error.code]
    code = error.api_code if isinstance(error, BadRequest) else row.openai_code
    parameter = error.parameter if isinstance(error, BadRequest | NotFound) else None
    message = str(error) or type(error).__name__
    headers = dict(row.headers)
    if isinstance(error, RateLimited | ModelLoading):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return Problem(row=row, message=message, parameter=parameter, code=code, headers=headers)


def to_http_status(code: Code) -> int:
    """The status of `code`, unless the dialect has a different one."""
    return _ROW_BY_CODE[code].status
