"""One request and its answer, on the ASGI side: who asks, what has been sent, and how to cut it short."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Message, Scope, Send

from weft.web.http.body import ClientGone

ABORT = "weft.abort"  # of the scope's extensions: hangs up at once, whatever is still unsent
_LABEL = re.compile(r"[\x21-\x7e]{1,128}")


class Exchange:
    """Owned by the task that serves the request; `cut` may be called by others on the same loop."""

    def __init__(self, scope: Scope, send: Send, write_timeout_s: float) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.headers = _headers(scope)
        self.request_id = uuid.uuid4().hex
        given = self.headers.get("x-request-id", "")
        self.label = given if _LABEL.fullmatch(given) else self.request_id
        self.extra_headers: dict[str, str] = {}
        self.handler = "none"  # for metrics: an endpoint's path, never what a client made up
        self.started_at = time.monotonic()
        self.status: int | None = None
        self.is_event_stream = False
        self.is_ended = False
        self.num_bytes_in = 0
        self.num_bytes_out = 0
        self.ending: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._send = send
        self._sent_at = self.started_at
        self._write_timeout_s = write_timeout_s
        self._write_began_at: float | None = None  # of the one under way
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_aborted = False
        self._abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, lambda: None)

    @property
    def silent_s(self) -> float:
        """Seconds since something was sent."""
        return time.monotonic() - self._sent_at

    def cut(self, reason: BaseException) -> None:
        """End it early: what runs is cancelled, and the caller is told `reason`."""
        if not self.ending.done():
            self.ending.set_result(reason)

    def abort(self) -> None:
        """Hang up."""
        self.is_ended = self._is_aborted = True
        self._stop_watching()
        self._abort()
        self.cut(ClientGone())

    async def start(
        self, status: int, headers: Mapping[str, str], *, is_event_stream: bool = False
    ) -> None:
        """Send status and headers."""
        self.is_event_stream = is_event_stream
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer in one piece."""
        await self.start(status, {"content-length": str(len(body)), **headers})
        await self.end(body)

    async def send(self, message: Message) -> None:
        """Send one ASGI message; hang up on a reader that takes nothing for too long."""
        if self.is_ended:
            return
        is_last = self._note(message)
        if self._stall_timer is None:
            self._watch(self._write_timeout_s)
        self._sent_at = self._write_began_at = time.monotonic()
        try:
            await self._send(message)
        finally:
            self._write_began_at = None
            if is_last:
                self._stop_watching()
        if self._is_aborted:
            raise ClientGone

    def _watch(self, within_s: float) -> None:
        # One timer an answer: one around each write was a tenth of what streaming a token costs.
        loop = asyncio.get_running_loop()
        self._stall_timer = loop.call_later(within_s, self._check_stall)

    def _check_stall(self) -> None:
        if self._write_began_at is None:
            self._watch(self._write_timeout_s)
            return
        remaining_s = self._write_began_at + self._write_timeout_s - time.monotonic()
        if remaining_s > 0:
            self._watch(remaining_s)
        else:
            self.abort()

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _note(self, message: Message) -> bool:
        """Count what is sent; whether that is the end."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            ours = {"x-request-id": self.label, "x-content-type-options": "nosniff"}
            ours |= self.extra_headers
            message["headers"] = [
                *message.get("headers", ()),
                *((name.encode(), value.encode("latin-1")) for name, value in ours.items()),
            ]
        else:
            self.num_bytes_out += len(message.get("body", b""))
            self.is_ended = not message.get("more_body", False)
        return self.is_ended


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, Any] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
