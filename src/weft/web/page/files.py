"""The web pages' files as endpoints: static, available without a key and before the model is loaded.

All data on the pages come from the APIs, with the key that the user enters.
"""

from typing import Final

from starlette.responses import Response

from weft.web.http.endpoint import Access, Answer, Call, Endpoint
from weft.web.page import assets


def _endpoint(name: str) -> Endpoint:
    async def send(call: Call) -> Answer:
        data, tag = assets.read(name)
        headers = {**assets.HEADERS, "content-type": assets.content_type(name), "etag": tag}
        if tag in call.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers)

    return Endpoint(
        method="GET",
        path=assets.path_of(name),
        handler=send,
        summary="A page, or a file of one.",
        access=Access.PAGE,
    )


PAGES: Final = tuple(_endpoint(name) for name in assets.PAGES)
"""The page at /, and /docs."""

DOCS: Final = tuple(_endpoint(name) for name in assets.DOCS)
"""Those that /docs needs."""
