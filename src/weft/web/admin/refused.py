"""Paths that other servers have and this one does not: refused by name, so that nobody has to guess."""

from typing import Any

from weft.core.errors import Unsupported
from weft.web.http.endpoint import Access, Answer, Call, Endpoint

_API = (
    ("POST", "/v1/audio/transcriptions", "audio is not supported: the model reads text only"),
    ("POST", "/v1/audio/translations", "audio is not supported: the model reads text only"),
    ("POST", "/v1/audio/speech", "speech is not supported: the model writes text only"),
    ("POST", "/v1/images/generations", "images are not supported: the model writes text only"),
    ("GET", "/v1/realtime", "the realtime API is not supported; use /v1/responses"),
)
_CONTROL = (
    ("POST", "/update_weights", "update_weights is not supported; restart with the new checkpoint"),
    (
        "POST",
        "/scale_elastic_ep",
        "scale_elastic_ep is not supported: there are no experts to move",
    ),
    ("POST", "/is_scaling_elastic_ep", "is_scaling_elastic_ep is not supported"),
)


def _refused(row: tuple[str, str, str], access: Access) -> Endpoint:
    method, path, message = row

    async def refuse(_call: Call) -> Answer:
        raise Unsupported(message)

    summary = f"Refused: {message}."
    fields: dict[str, Any] = {"method": method, "path": path, "access": access}
    return Endpoint(handler=refuse, summary=summary, is_refused=True, **fields)


ENDPOINTS = (
    *(_refused(row, Access.API) for row in _API),
    *(_refused(row, Access.CONTROL) for row in _CONTROL),
)
