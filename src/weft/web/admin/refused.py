"""Paths of other servers' APIs that this server refuses, with the reason."""

from typing import Any

from weft.web.http.endpoint import Access, Answer, Call, Endpoint
from weft.web.http.problem import HttpError

_API = (
    ("POST", "/v1/audio/speech", "speech is not supported: the model writes text only"),
    ("POST", "/v1/images/generations", "images are not supported: the model writes text only"),
    ("GET", "/v1/realtime", "the realtime API is not supported; use /v1/responses"),
)


def _refused(row: tuple[str, str, str]) -> Endpoint:
    method, path, message = row

    async def refuse(_call: Call) -> Answer:
        raise HttpError(404, message, code="unsupported")

    summary = f"Refused: {message}."
    fields: dict[str, Any] = {"method": method, "path": path, "access": Access.API}
    return Endpoint(handler=refuse, summary=summary, is_refused=True, **fields)


ENDPOINTS = tuple(_refused(row) for row in _API)
