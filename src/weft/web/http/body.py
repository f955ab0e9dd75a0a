"""A request's body: received within limits of size and time, then decoded without a second guess."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Receive

from weft.core.errors import BadRequest
from weft.core.json_pieces import SLICE_BYTES
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError
from weft.web.http.scan import MAX_VALUES, BodyScan

_BOM = b"\xef\xbb\xbf"
_MAX_MESSAGE_CHARS = 200
_MISSING = re.compile(r"missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


class ClientGone(Exception):
    """The other side has hung up; there is nobody to tell."""


def check_content(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not plain JSON. Without a type, too: browsers send that across origins."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HttpError(
            415, f"content-encoding {encoding[:40]!r} is not supported; send plain JSON"
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "the content-type must be application/json")


async def read_body(
    receive: Receive,
    headers: Mapping[str, str],
    options: HttpOptions,
    max_values: int = MAX_VALUES,
) -> bytes:
    """The whole body; 413 beyond the limits and 408 when it comes too slowly.

    It is looked at on the way (`weft.web.http.scan`), so that it can be decoded in one piece.
    """
    limit = options.max_body_bytes
    is_too_large = int(headers.get("content-length", "0")) > limit
    body = bytearray()
    scan = BodyScan(max_values)
    started = time.monotonic()
    more = True
    while more and not is_too_large:
        budget_s = options.body_grace_s + len(body) / options.min_body_rate
        chunk, more = await _next_chunk(receive, started + budget_s - time.monotonic())
        is_too_large = len(body) + len(chunk) > limit
        body += chunk
        if not is_too_large:
            await _look(scan, body, is_whole=not more)
    if is_too_large:
        # At once: what the client still sends is dropped while it reads the answer (`lingering`).
        raise HttpError(
            413, f"the body is larger than {limit} bytes", headers={"connection": "close"}
        )
    whole = bytes(body)
    if len(whole) > SLICE_BYTES:
        await asyncio.sleep(0)  # decoding it takes a turn of its own
    return whole


async def _look(scan: BodyScan, body: bytearray, *, is_whole: bool) -> None:
    """Look at what has come, except for less than a slice; others get a turn after each."""
    while len(body) - scan.num_bytes >= SLICE_BYTES:
        scan.feed(bytes(body[scan.num_bytes : scan.num_bytes + SLICE_BYTES]))
        await asyncio.sleep(0)
    if is_whole:
        scan.feed(bytes(body[scan.num_bytes :]))
        scan.end()


async def _next_chunk(receive: Receive, within_s: float) -> tuple[bytes, bool]:
    # Not `asyncio.timeout`: a budget that is spent must not let another chunk through.
    if within_s <= 0:
        raise _too_slow()
    try:
        async with asyncio.timeout(within_s):
            message = await receive()
    except TimeoutError:
        raise _too_slow() from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _too_slow() -> HttpError:
    return HttpError(408, "the body came too slowly", headers={"connection": "close"})


def decode_body(body: bytes, kind: Any) -> Any:
    """`body`, which `read_body` has looked at, as a `kind`; `BadRequest` names the place at fault.

    Nothing is guessed: no byte order mark, no second value for a key, no text that is not UTF-8.
    """
    if not body.strip():
        raise BadRequest(None, "the body is empty; a JSON object is needed")
    if body.startswith(_BOM):
        raise BadRequest(None, "the body starts with a byte order mark; send plain UTF-8")
    return _decode(body, kind)


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:  # ValidationError is one of these
        text = str(error)  # which may repeat what was sent
        if len(text) > _MAX_MESSAGE_CHARS:
            text = f"{text[:_MAX_MESSAGE_CHARS]}... - at `{text.rpartition(' - at `')[2]}"
        raise BadRequest(_parameter(text), f"{_PATH.sub('', text)}{_place(text)}") from None
    except RecursionError:
        raise BadRequest(None, "the body is nested too deeply") from None


def _parameter(text: str) -> str | None:
    path, missing = _PATH.search(text), _MISSING.search(text)
    names = [match[1] for match in (path, missing) if match and match[1]]
    return ".".join(names) or None


def _place(text: str) -> str:
    path = _PATH.search(text)
    return f", at {path[1]}" if path and path[1] else ""
