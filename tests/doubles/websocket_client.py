"""A WebSocket client of wsproto's protocol, which sends and receives JSON events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.busy import PATIENCE_S


class Refused(Exception):
    """The answer of a server that accepts no WebSocket."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = json.loads(body)


class Client:
    """An open WebSocket. `close_code` is set when the server has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._wire = WSConnection(ConnectionType.CLIENT)
        self._events: list[Any] = []
        self._text = ""
        self.headers: dict[bytes, bytes] = {}
        self.close_code: int | None = None

    async def open(self, host: str, target: str, headers, subprotocols) -> None:
        """The handshake."""
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.write(Request(host=host, target=target, extra_headers=raw, subprotocols=subprotocols))
        first = await self._next()
        if isinstance(first, AcceptConnection):
            self.headers = dict(first.extra_headers)
            self.subprotocol = first.subprotocol
            return
        assert isinstance(first, RejectConnection)
        body = b""
        while isinstance(piece := await self._next(), RejectData):
            body += piece.data
            if piece.body_finished:
                break
        raise Refused(first.status_code, body)

    def write(self, event: Any) -> None:
        """One event of wsproto."""
        self._writer.write(self._wire.send(event))

    def send(self, event: dict[str, Any] | str | bytes) -> None:
        """One message: JSON unless it is text or bytes."""
        self.write(Message(json.dumps(event) if isinstance(event, dict) else event))

    async def receive(self) -> dict[str, Any] | None:
        """The next event of the server; None once it has closed."""
        while True:
            event = await self._next()
            if event is None:
                return None
            if isinstance(event, CloseConnection):
                self.close_code = event.code
                return None
            assert not isinstance(event, BytesMessage)
            if isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    found: dict[str, Any] = json.loads(text)
                    return found

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All events up to the first of this type."""
        found = []
        while True:
            event = await self.receive()
            assert event is not None, f"closed with {self.close_code} after {found}"
            found.append(event)
            if event["type"] == kind:
                return found

    async def _next(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not self._events:
                data = await self._reader.read(65536)
                self._wire.receive_data(data or None)
                self._events += list(self._wire.events())
                if not data and not self._events:
                    return None
        return self._events.pop(0)


@asynccontextmanager
async def connected(
    base_url: str, path: str = "/v1/realtime", headers=None, subprotocols=()
) -> AsyncIterator[Client]:
    """A WebSocket of the server at that address; raises `Refused` for an HTTP response."""
    place = urlsplit(base_url)
    assert place.hostname is not None
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        client = Client(reader, writer)
        await client.open(place.netloc, path, headers or {}, list(subprotocols))
        yield client
    finally:
        writer.close()
