"""`/docs`: the endpoints as one page that loads nothing and runs nothing."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Final

from weft import __version__
from weft.web.http.endpoint import Endpoint

_STYLE: Final = (
    ":root{color-scheme:light dark;font:1rem/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;"
    "vertical-align:top}code{font-family:ui-monospace,monospace}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def docs_page(endpoints: Sequence[Endpoint]) -> str:
    """A table of `endpoints`, sorted by path."""
    rows = "".join(
        f"<tr><td>{escape(endpoint.method)}<td><code>{escape(endpoint.path)}</code>"
        f"<td>{escape(endpoint.access.value)}<td>{escape(endpoint.summary)}</tr>\n"
        for endpoint in sorted(endpoints, key=lambda e: (e.path, e.method))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Weft</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>Weft {escape(__version__)}</h1>"
        '<p>Bodies, answers and errors are described in <a href="/openapi.json">openapi.json</a>.</p>'
        "<table><thead><tr><th>method<th>path<th>for<th>what</tr></thead>\n"
        f"<tbody>{rows}</tbody></table></body></html>"
    )
