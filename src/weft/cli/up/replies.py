"""Envoy's local replies as errors of the APIs behind Envoy: for Envoy's own errors and for the picker's.

Envoy passes the text of the picker's refusals on. This configuration converts the text to an error in the format of
OpenAI or Anthropic, as the workers write it. gRPC clients get the text as the status message.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from weft.web.http.endpoint import Dialect
from weft.web.http.problem import HttpError, to_problem

_TEXT: Final = "%LOCAL_REPLY_BODY%"
_DETAILS: Final = "%RESPONSE_CODE_DETAILS%"  # some of Envoy's own failures have no text
_REQUEST_ID: Final = "%REQ(X-REQUEST-ID)%"
_MESSAGES: Final = "/v1/messages"
# Statuses with their own error body; others get the body of 500 or 400.
_STATUSES: Final = (403, 413, 429, 503)
_FALLBACK: Final = 400


def local_replies() -> dict[str, Any]:
    """Returns the `local_reply_config` of Envoy's connection manager. The first matching mapper decides."""
    return {
        "mappers": [
            {
                "filter": _header("content-type", "application/grpc"),
                "body_format_override": {"text_format_source": {"inline_string": _TEXT}},
            },
            *_mappers(Dialect.ANTHROPIC, [_header(":path", _MESSAGES)]),
            *_mappers(Dialect.OPENAI, []),
        ]
    }


def _mappers(dialect: Dialect, conditions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for status in _STATUSES:
        yield _mapper(dialect, [*conditions, _status("EQ", status)], status)
    yield _mapper(dialect, [*conditions, _status("GE", 500)], 500)
    yield _mapper(dialect, [*conditions, _status("GE", _FALLBACK)], _FALLBACK)


def _mapper(dialect: Dialect, conditions: list[dict[str, Any]], status: int) -> dict[str, Any]:
    text = _TEXT if status != 500 else f"{_TEXT} {_DETAILS}"
    problem = to_problem(HttpError(status, text), _REQUEST_ID)
    mapper: dict[str, Any] = {
        "filter": conditions[0]
        if len(conditions) == 1
        else {"and_filter": {"filters": conditions}},
        "body_format_override": {
            "json_format": msgspec.json.decode(problem.body(dialect, _REQUEST_ID))
        },
        "headers_to_add": [
            {
                "header": {"key": key, "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for key, value in {"content-type": "application/json", **problem.headers}.items()
        ],
    }
    if problem.status(dialect) != status:
        mapper["status_code"] = problem.status(dialect)
    return mapper


def _header(name: str, prefix: str) -> dict[str, Any]:
    return {"header_filter": {"header": {"name": name, "string_match": {"prefix": prefix}}}}


def _status(comparison: str, status: int) -> dict[str, Any]:
    value = {"default_value": status, "runtime_key": f"weft.local_reply.{status}"}
    return {"status_code_filter": {"comparison": {"op": comparison, "value": value}}}
