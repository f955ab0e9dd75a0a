"""WebSockets on the HTTP server: an exchange whose body is messages in both directions."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.types import Message, Receive, Send

from weft.web.http.endpoint import Endpoint
from weft.web.http.exchange import Exchange

MAX_MESSAGE_BYTES: Final = 2**20
PING_INTERVAL_S: Final = 20.0
_MAX_REASON_BYTES: Final = 120


class SocketSend:
    """The send function of an exchange: its response is a refusal until the socket is accepted, then messages."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_accepted = False

    async def accept(self, subprotocol: str | None, headers: list[tuple[bytes, bytes]]) -> None:
        """Accepts the socket."""
        await self._send(
            {"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers}
        )
        self._is_accepted = True

    async def close(self, code: int, reason: str) -> None:
        """Closes the socket with a code of RFC 6455."""
        text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": code, "reason": text})

    async def __call__(self, message: Message) -> None:
        """Sends one ASGI message of an HTTP response."""
        if not self._is_accepted:
            await self._send({**message, "type": f"websocket.{message['type']}"})
        elif message.get("body"):
            await self._send({"type": "websocket.send", "text": message["body"].decode()})


class Socket:
    """The WebSocket of one exchange. Texts only: a message of bytes is returned as bytes, for its reader to refuse.
    `decode` decodes a message as the body of an endpoint, with the same checks.
    """

    def __init__(
        self,
        exchange: Exchange,
        receive: Receive,
        decode: Callable[[bytes, Endpoint], Awaitable[Any]],
    ) -> None:
        self.decode = decode
        self._exchange = exchange
        self._receive = receive
        assert isinstance(exchange.sender, SocketSend)
        self._send = exchange.sender
        self.is_closed = False

    async def accept(self, subprotocol: str | None = None) -> None:
        """Completes the handshake. Until then, errors are HTTP responses."""
        await self._receive()  # websocket.connect
        offered = self._exchange.scope.get("subprotocols", ())
        headers = [(b"x-request-id", self._exchange.label.encode())]
        await self._send.accept(subprotocol if subprotocol in offered else None, headers)
        self._exchange.status = 101

    async def receive(self) -> str | bytes | None:
        """Returns the next message; None if the client has disconnected."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.is_closed = True
            return None
        text: str | None = message.get("text")
        given: str | bytes = message["bytes"] if text is None else text
        self._exchange.num_bytes_in += len(given)
        return given

    async def send(self, data: bytes) -> None:
        """Sends one message; raises `ClientDisconnected` if the client reads nothing for too long."""
        await self._exchange.write(data)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes the socket, unless it is closed."""
        if not self.is_closed:
            self.is_closed = True
            await self._send.close(code, reason)
