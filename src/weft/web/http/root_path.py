"""`RootPath`: an ASGI application whose paths may have a prefix."""

import re
from typing import Final

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# No percent escapes, so that the prefix has the same length before and after decoding.
VALID: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


class RootPath:
    """Serves an application at its own paths, and at these paths after `prefix`: behind a proxy that keeps the prefix,
    and behind one that removes it. A request for the prefix alone is redirected to `prefix`/, where the page is.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix
        self._start = f"{prefix}/".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        raw_path: bytes = scope["raw_path"]
        if raw_path.startswith(self._start):
            length = len(self._prefix)
            scope = {**scope, "raw_path": raw_path[length:], "path": scope["path"][length:]}
        elif raw_path + b"/" == self._start:
            await RedirectResponse(f"{self._prefix}/")(scope, receive, send)
            return
        await self._app(scope, receive, send)
