"""The protocol of a connection after its upgrade to a WebSocket. Imported at the first upgrade."""

from collections.abc import Callable
from typing import Final, cast

from starlette.types import Scope
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events

from weft.web.http.connections.sockets import SocketSend
from weft.web.http.exchange import ABORT

_KEY_PROTOCOL: Final = "openai-insecure-api-key."


class LimitedWebSocket(WSProtocol):
    """uvicorn's protocol, adapted to our exchanges. The connection is counted with the server's others."""

    note_lost: Callable[[], None]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.note_lost()

    def handle_connect(self, event: events.Request) -> None:
        self.send = SocketSend(super().send)  # type: ignore[arg-type, assignment, method-assign]
        super().handle_connect(event)
        scope = cast(Scope, self.scope)
        scope["method"] = "GET"
        scope["extensions"][ABORT] = self.transport.abort
        names = {name for name, _ in scope["headers"]}
        for offered in scope["subprotocols"]:
            # As OpenAI's client for browsers sends a key: web pages cannot set headers of a WebSocket.
            if offered.startswith(_KEY_PROTOCOL) and b"authorization" not in names:
                key = offered.removeprefix(_KEY_PROTOCOL).encode()
                scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + key)]
