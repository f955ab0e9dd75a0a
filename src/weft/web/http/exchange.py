"""A request and its response in ASGI terms: the caller, the sent data, and functions to end it early."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.types import Message, Scope, Send

from weft.core.aio.write_stall import WriteStall
from weft.core.observe.log import REQUEST
from weft.core.observe.tracing import Span, Tracer
from weft.core.tenants import Tenant
from weft.web.http.body import ClientDisconnected
from weft.web.http.endpoint import PARTS, PartWriter
from weft.web.inside import INSIDE, Inside

# Key in the ASGI scope's extensions: closes the connection at once, without sending the rest.
ABORT = "weft.abort"
_SLASHES = re.compile(rb"//+")
_LABEL = re.compile(r"[\x21-\x7e]{1,128}")


class Exchange:
    """The exchange of one request, owned by the task that serves it; other tasks on the same loop may call `cut`."""

    # Label of metrics: an endpoint's path, never a path that a client invented.
    handler = "none"
    status: int | None = None
    is_event_stream = False
    is_ended = False
    num_bytes_in = 0
    num_bytes_out = 0
    field_names: Sequence[str] = ()  # of the body, where it is a JSON object
    long_strings: Sequence[tuple[int, int]] = ()  # of the body, as its scan found them
    span: Span | None = None
    tenant: Tenant | None = None
    _is_aborted = False

    def __init__(self, scope: Scope, send: Send, write_timeout_s: float) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.raw_path: bytes = _tidied(scope.get("raw_path") or scope["path"].encode())
        self.headers = _headers(scope)
        self.request_id = uuid.uuid4().hex
        given = self.headers.get("x-request-id", "")
        self.label = given if _LABEL.fullmatch(given) else self.request_id
        self.extra_headers: dict[str, str] = {}
        self.started_at = time.monotonic()
        self.releases: list[Callable[[], None]] = []  # called after the answer was sent
        self.ending: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.sender = send
        self._stall = WriteStall(write_timeout_s, self.abort)
        extensions = scope.get("extensions", {})
        self._abort: Callable[[], None] = extensions.get(ABORT, lambda: None)
        self._parts: PartWriter | None = extensions.get(PARTS)
        self.inside: Inside | None = extensions.get(INSIDE)

    def begin_span(self, tracer: Tracer) -> None:
        """Begins a trace span; requests to other servers continue it."""
        span = self.span = tracer.begin(f"{self.method} {self.handler}", self.headers)
        span.set("http.request.method", self.method)
        span.set("http.route", self.handler)
        span.set("gen_ai.request.id", self.label)
        self.headers.update(span.headers)
        REQUEST.set((self.label, span.headers["traceparent"]))

    def end_span(self, span: Span) -> None:
        """Ends the span. A caller's mistake is not an error of a server span; a disconnect is."""
        if self._is_aborted or self.status is None:
            span.fail("the client went away")
        elif self.status >= 500:
            span.fail(f"status {self.status}")
        span.set("http.response.status_code", self.status)
        span.end()

    @property
    def silent_s(self) -> float:
        """Seconds since something was sent."""
        return asyncio.get_running_loop().time() - self._stall.began_at

    def summary(self) -> str:
        """Returns the request, its status, its duration so far and its id in one line."""
        elapsed_s = time.monotonic() - self.started_at
        return f"{self.method} {self.handler} {self.status} in {elapsed_s:.3f} s, id={self.label}"

    def cut(self, reason: BaseException) -> None:
        """Ends the exchange early: cancels its task, and sends `reason` as the response."""
        if not self.ending.done():
            self.ending.set_result(reason)

    def abort(self) -> None:
        """Closes the connection at once."""
        self.is_ended = self._is_aborted = True
        self._stall.stop()
        self._abort()
        self.cut(ClientDisconnected())

    async def start(
        self, status: int, headers: Mapping[str, str], *, is_event_stream: bool = False
    ) -> None:
        """Send status and headers."""
        self.is_event_stream = is_event_stream
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Sends a part of the body, like `send` but at a tenth of its cost per token."""
        if not data or self.is_ended:
            return
        self.num_bytes_out += len(data)
        with self._stall:
            await self.sender({"type": "http.response.body", "body": data, "more_body": True})
        if self._is_aborted:
            raise ClientDisconnected

    @property
    def takes_parts(self) -> bool:
        """True if `write_part` may be called; always False if the HTTP server does not support it."""
        return self._parts is not None and not self.is_ended and self._parts.takes_parts

    def write_part(self, data: bytes) -> None:
        """Writes immediately, without awaiting; only while `takes_parts`."""
        assert self._parts is not None
        if data:
            self.num_bytes_out += len(data)
            self._stall.touch()
            self._parts.write_part(data)

    async def end(self, data: bytes = b"") -> None:
        """Sends the last part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Sends a response in one piece."""
        await self.start(status, {"content-length": str(len(body)), **headers})
        await self.end(body)

    async def send(self, message: Message) -> None:
        """Sends one ASGI message; closes the connection if the client reads nothing for too long."""
        if self.is_ended:
            return
        is_last = self._note(message)
        try:
            with self._stall:
                await self.sender(message)
        finally:
            if is_last:
                self._stall.stop()
        if self._is_aborted:
            raise ClientDisconnected

    def _note(self, message: Message) -> bool:
        """Counts the data that is sent; returns True at the end of the response."""
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


def _tidied(raw_path: bytes) -> bytes:
    """A path under /v1 without repeated slashes: clients append paths to addresses that end in a slash.

    Other paths are unchanged: a proxy may have a rule for exactly that path.
    """
    path = _SLASHES.sub(b"/", raw_path).rstrip(b"/")
    return path if path.startswith(b"/v1/") else raw_path


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, Any] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
