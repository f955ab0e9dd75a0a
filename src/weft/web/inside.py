"""Requests that the server's own work makes, such as those of a batch: they pass the same checks as a caller's."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from starlette.types import ASGIApp, Message

from weft.core.aio.pauses import Pauses

# Key in the ASGI scope's extensions. Only this module sets it: no request from a network has it.
INSIDE: Final = "weft.inside"
# Statuses after which the same request is sent again; any other status is the answer.
TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_PAUSES_S: Final = (0.25, 30.0)  # first and longest pause before a request is sent again
_LONGEST_WAIT_S: Final = 60.0  # upper limit of a pause that the server asks for
_MAX_TRIES: Final = 8  # of a request that fails inside the server


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
        pieces: list[bytes] = []  # joined once: an answer of many choices comes in as many pieces

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
                pieces.append(message.get("body", b""))

        await app(_scope(path, body, inside), receive, send)
        answer.body = b"".join(pieces)
        return answer

    return call


async def until_answered(send: Callable[[], Awaitable[InsideAnswer]]) -> InsideAnswer:
    """Sends a request again, after growing pauses, while the server has no room for it. An error of the server itself
    (500) is the answer after some tries.
    """
    pauses, num_tries = Pauses(*_PAUSES_S), 0
    while True:
        answer = await send()
        num_tries += 1
        is_broken = answer.status == 500 and num_tries >= _MAX_TRIES
        if answer.status not in TRANSIENT or is_broken:
            return answer
        wanted = answer.headers.get("retry-after", "")
        wanted_s = min(float(wanted), _LONGEST_WAIT_S) if wanted.isdecimal() else 0.0
        await asyncio.sleep(max(pauses.next_s(), wanted_s))


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
