"""Requests that the server's own work makes, such as those of a batch: they pass the same checks as a caller's."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from starlette.types import ASGIApp, Message

# Key in the ASGI scope's extensions. Only this module sets it: no request from a network has it.
INSIDE: Final = "weft.inside"


@dataclass(frozen=True, slots=True)
class Inside:
    """The tenant that a request is made for, "" for none. A request that `is_low` runs behind those of callers.
    `subject` is an object for the handler.
    """

    tenant: str
    is_low: bool = False
    subject: Any = None


@dataclass(slots=True)
class InsideAnswer:
    """The answer to such a request."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


InsideCaller: TypeAlias = Callable[[str, bytes, Inside], Awaitable[InsideAnswer]]
"""Posts a JSON body to a path."""


def inside_caller(app: ASGIApp) -> InsideCaller:
    """Returns the function that makes requests to `app`."""

    async def call(path: str, body: bytes, inside: Inside) -> InsideAnswer:
        answer = InsideAnswer()
        parts = [body]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await asyncio.Event().wait()  # the caller never leaves
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                pairs = message.get("headers", ())
                answer.headers = {name.decode(): text.decode("latin-1") for name, text in pairs}
            else:
                answer.body += message.get("body", b"")

        await app(_scope(path, body, inside), receive, send)
        return answer

    return call


def _scope(path: str, body: bytes, inside: Inside) -> dict[str, Any]:
    length = str(len(body)).encode()
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
        "extensions": {INSIDE: inside},
    }
