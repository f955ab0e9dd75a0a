"""The pages' files as endpoints: the same bytes for everybody, before the model is there and without a key.

Whatever a page shows it gets from the APIs, with the key that its reader typed into it.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import Response

from weft.web.http.endpoint import Access, Answer, Call, Endpoint

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PATHS: Final = {"index.html": "/", "docs.html": "/docs"}
# Scripts and styles from this server's files alone, nothing that text could become, no other server.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time, and is answered 304: after an update no file is of another version.
    "cache-control": "no-cache",
}


@cache  # read when first asked for: a start has better things to do
def _read(path: Path) -> tuple[bytes, str]:
    """The file, and its entity tag."""
    data = path.read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def _endpoint(file: Path) -> Endpoint:
    async def send(call: Call) -> Answer:
        data, tag = _read(file)
        headers = {**_HEADERS, "content-type": _TYPES[file.suffix], "etag": tag}
        if tag in call.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers)

    return Endpoint(
        method="GET",
        path=_PATHS.get(file.name, f"/page/{file.name}"),
        handler=send,
        summary="A page, or a file of one.",
        access=Access.PAGE,
    )


PAGES: Final = tuple(_endpoint(file) for file in sorted(STATIC.iterdir()) if file.suffix in _TYPES)
"""The page at /, and /docs."""

DOCS: Final = tuple(
    _endpoint(STATIC / name)
    for name in ("docs.html", "docs.js", "api.js", "dom.js", "start.js", "style.css", "icon.svg")
)
"""Those that /docs needs."""
