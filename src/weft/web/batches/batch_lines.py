"""Lines of OpenAI's Batch format: a request on each line of the input, and an answer on each line of the output.

Format: https://platform.openai.com/docs/guides/batch, "Preparing your batch file" and "Retrieving the results".
"""

from typing import Final

import msgspec

from weft.core.errors import ConfigError

# The limit of a body (docs/decisions/0013), plus the fields around it.
MAX_LINE_BYTES: Final = 13 * 2**20
_MAX_ID_CHARS = 512


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the input file. `body` is the JSON body of the request to `url`, such as `/v1/chat/completions`."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class BatchResponse(msgspec.Struct, frozen=True):
    """The response of a server to a request. `body` is its JSON body."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """The reason why a request of a batch has no response."""

    code: str
    message: str


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the output file: a response, or the error of a request that the batch did not run."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: LineError | None = None


class _Body(msgspec.Struct):
    stream: bool | None = None


_requests = msgspec.json.Decoder(BatchRequest)
_bodies = msgspec.json.Decoder(_Body)


def read_request(line: bytes, seen: set[str]) -> BatchRequest:
    """Returns the request of a line, checked. `seen` has the `custom_id` of each earlier request; a duplicate raises
    `ConfigError`.
    """
    check_length(line)
    request = _requests.decode(line)
    _check(request)
    if request.custom_id in seen:
        raise ConfigError(f"duplicate custom_id {request.custom_id!r}")
    return request


def check_length(line: bytes) -> None:
    """Raises `ConfigError` for a line that is too long."""
    if len(line) > MAX_LINE_BYTES:
        raise ConfigError(f"the line is longer than {MAX_LINE_BYTES} bytes")


def _check(request: BatchRequest) -> None:
    if not 0 < len(request.custom_id) <= _MAX_ID_CHARS:
        raise ConfigError(f"custom_id must have 1 to {_MAX_ID_CHARS} characters")
    if request.method != "POST":
        raise ConfigError(f'method must be "POST", not {request.method!r}')
    if not request.url.startswith("/"):
        raise ConfigError(
            f"url must be a path such as /v1/chat/completions, not {request.url[:100]!r}"
        )
    if _bodies.decode(request.body).stream:
        raise ConfigError("stream must be false: each answer is written as one line")
