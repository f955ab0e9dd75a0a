"""The web pages' files and their HTTP headers; imports no server, because several servers use it."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles come from this server's files only; no inline code, no other server.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers revalidate each time and get 304: after an update, all files are of the same version.
    "cache-control": "no-cache",
}
_COMMON: Final = ("api.js", "dom.js", "start.js", "style.css", "icon.svg")
DOCS: Final = ("docs.html", "docs.js", *_COMMON)
ROUTING: Final = ("routing.html", "routing.js", *_COMMON)
"""The page of a picker: its decisions, as its own port has them."""
PAGES: Final = tuple(
    file.name
    for file in sorted(STATIC.iterdir())
    if file.suffix in TYPES and file.name not in ROUTING[:2]
)
"""The page at /, and /docs."""
_PATHS: Final = {"index.html": "/", "docs.html": "/docs", "routing.html": "/"}


def path_of(name: str) -> str:
    """Path at which a file is served."""
    return _PATHS.get(name, f"/page/{name}")


def content_type(name: str) -> str:
    """Content type of a file."""
    return TYPES[Path(name).suffix]


@cache  # read at the first request, to keep the start fast
def read(name: str) -> tuple[bytes, str]:
    """A file's content, and its entity tag."""
    data = (STATIC / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'
