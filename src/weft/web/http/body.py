"""A request's body: received within limits of size and time, then decoded without a second guess."""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.types import Receive

from weft.core.errors import BadRequest
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError

_DISCARD_S = 10.0
_BOM = b"\xef\xbb\xbf"
_MISSING = re.compile(r"missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
# Braces and strings, and the colon that makes a string a key. Possessive: time is linear in the text.
_TOKENS = re.compile(rb'[{}]|"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+:?', re.DOTALL)
# Looking at one takes a third of a microsecond, in which nobody else is served.
_MAX_TOKENS = 2_000_000


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


async def read_body(receive: Receive, headers: Mapping[str, str], options: HttpOptions) -> bytes:
    """The whole body; 413 beyond the limit and 408 when it comes too slowly."""
    limit = options.max_body_bytes
    is_too_large = int(headers.get("content-length", "0")) > limit
    body = bytearray()
    started = time.monotonic()
    more = True
    while more and not is_too_large:
        budget_s = options.body_grace_s + len(body) / options.min_body_rate
        chunk, more = await _next_chunk(receive, started + budget_s - time.monotonic())
        is_too_large = len(body) + len(chunk) > limit
        body += chunk
    if is_too_large:
        body.clear()
        await _discard(receive, more)
        raise HttpError(413, f"the body is larger than {limit} bytes")
    return bytes(body)


async def _discard(receive: Receive, more: bool) -> None:
    """Drop the rest for a while: who still sends when the connection closes never sees the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                more = message.get("more_body", False)


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


def decode_body(body: bytes, kind: Any, *, is_strict: bool = False) -> Any:
    """`body` as a `kind`; `BadRequest` names the place at fault by its path.

    Nothing is guessed: no byte order mark, no second value for a key, no text that is not UTF-8.
    """
    if not body.strip():
        raise BadRequest(None, "the body is empty; a JSON object is needed")
    if body.startswith(_BOM):
        raise BadRequest(None, "the body starts with a byte order mark; send plain UTF-8")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(None, f"the body is not UTF-8 (byte {error.start})") from None
    value = _decode(body, kind)
    _refuse_repeated_keys(body)
    if is_strict:
        _refuse_unknown(body, kind)
    return value


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:  # ValidationError is one of these
        text = str(error)
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


def _refuse_repeated_keys(body: bytes) -> None:
    """Valid JSON in which a key comes twice means different things to different readers."""
    objects: list[set[bytes]] = []
    for number, match in enumerate(_TOKENS.finditer(body)):
        token = match[0]
        if token == b"{":
            objects.append(set())
        elif token == b"}":
            objects.pop()
        elif token.endswith(b":"):
            key = token[:-1].rstrip()
            if b"\\" in key:
                key = msgspec.json.encode(msgspec.json.decode(key))
            if key in objects[-1]:
                name = msgspec.json.decode(key)
                raise BadRequest(str(name)[:100], f"the key {str(name)[:100]!r} is there twice")
            objects[-1].add(key)
        if number > _MAX_TOKENS:
            raise BadRequest(None, f"the body has more than {_MAX_TOKENS} strings and objects")


def _refuse_unknown(body: bytes, kind: Any) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name in msgspec.json.decode(body, type=dict[str, msgspec.Raw]):
        if name not in known:
            raise BadRequest(
                name[:100], f"unknown field {name[:100]!r}; there are {', '.join(sorted(known))}"
            )
