"""Paths of other servers' APIs that this server refuses, with the reason."""

from typing import Any

from weft.web.http.app import dialect_of
from weft.web.http.endpoint import Access, Answer, Call, Endpoint
from weft.web.http.problem import HttpError

_ONE_MODEL = "the server has the model that it was started with"
_API = (
    ("POST", "/v1/audio/speech", "speech is not supported: the model writes text only"),
    ("POST", "/v1/images/generations", "images are not supported: the model writes text only"),
    ("GET", "/v1/realtime", "the realtime API is not supported; use /v1/responses"),
    ("POST", "/api/pull", f"pulling models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/push", f"pushing models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/create", f"creating models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/copy", f"copying models is not supported: {_ONE_MODEL}"),
    ("DELETE", "/api/delete", f"deleting models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/blobs/{digest}", f"storing files is not supported: {_ONE_MODEL}"),
)


def _refused(row: tuple[str, str, str]) -> Endpoint:
    method, path, message = row

    async def refuse(_call: Call) -> Answer:
        raise HttpError(404, message, code="unsupported")

    summary = f"Refused: {message}."
    fields: dict[str, Any] = {"method": method, "path": path, "dialect": dialect_of(path.encode())}
    fields["uses_model"] = False
    return Endpoint(handler=refuse, summary=summary, is_refused=True, access=Access.API, **fields)


ENDPOINTS = tuple(_refused(row) for row in _API)
