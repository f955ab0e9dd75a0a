"""A request's body: received within limits of size and time, scanned on the way, decoded strictly, and compared with
the fields of its API.
"""

import asyncio
import codecs
import difflib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import Any

import msgspec
from starlette.types import Receive

from weft.core.checks.allowed import explain, is_refused_value
from weft.core.checks.json_pieces import LONG, SLICE_BYTES, STRING, JsonPieces
from weft.core.errors import BadRequest
from weft.core.values.patterns import NEVER_BYTES
from weft.web.http.endpoint import Deviation, Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError
from weft.web.http.unpack import ENCODINGS, Unpacker, encoding_of

log = logging.getLogger("weft.web")

JSON = "application/json"
# Maximum number of numbers, strings and literals, such as token ids: this many are decoded in 20 ms.
MAX_VALUES = 2**19
# Maximum number of objects, arrays and keys: code that handles a body loops over them.
MAX_PARTS = 2**16

# Bytes of a request that are not counted against the limit of all bodies: the number of connections bounds them.
FREE_BYTES = 2**16

_KEYS = re.compile(
    rb'(?:[^"{}]++|' + STRING + rb"(?![ \t\r\n]*+:)" + NEVER_BYTES + rb")*+"
    rb"([{}]|(" + STRING + rb")[ \t\r\n]*+:)",
    re.DOTALL,
)
_BOM = b"\xef\xbb\xbf"
_SHORT = b'"..."'  # stands for a long string where an error would repeat it
_MAX_MESSAGE_CHARS = 200
_MISSING = re.compile(r"missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MAX_NAME_CHARS = 100
# Maximum number of logged warnings: callers choose field names, and could fill the log. Later warnings are sent as
# headers only.
_MAX_LOGGED = 1000


class ClientDisconnected(Exception):
    """The client has closed the connection."""


def check_content(headers: Mapping[str, str], kind: str) -> None:
    """Refuses a body of another content type. A missing type is refused too, because browsers send such requests
    across origins.
    """
    encoding = encoding_of(headers)
    if encoding not in ENCODINGS:
        raise HttpError(
            415,
            f"content-encoding {encoding[:40]!r} is not supported; there are {', '.join(ENCODINGS)}",
        )
    if headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise HttpError(415, f"the content-type must be {kind}")


class BodyBudget:
    """The bytes of all bodies that are being received or held; owned by one event loop.

    The first `FREE_BYTES` of each body do not count: small bodies are accepted while large ones are refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Counts a body during the block.

        The yielded function is called with the body's size whenever it has grown; it raises 429 if there is no room.
        """
        counted = 0

        def grow(num_bytes: int) -> None:
            nonlocal counted
            more = max(0, num_bytes - FREE_BYTES) - counted
            if self._num_bytes + more > self._max_bytes:
                raise HttpError(
                    429,
                    "the maximum of bytes of large bodies in memory is reached; send this request again soon",
                    headers={"connection": "close"},
                )
            counted += more
            self._num_bytes += more

        try:
            yield grow
        finally:
            self._num_bytes -= counted


async def read_body(
    receive: Receive,
    headers: Mapping[str, str],
    options: HttpOptions,
    scan: "BodyScan | None",
    grow: Callable[[int], None],
) -> bytes:
    """The whole unpacked body; raises 413 beyond the limits, which apply to the unpacked size, and 408 if it arrives
    too slowly.

    `grow` belongs to a `BodyBudget`. JSON is scanned on the way, so that it can be decoded in one piece; without a
    `scan` the body is a form.
    """
    limit = options.max_form_bytes if scan is None else options.max_body_bytes
    is_too_large = int(headers.get("content-length", "0")) > limit
    # Not a `bytearray`, which ends with a copy: on some machines the new pages of 25 MiB take 70 ms.
    body, num_bytes = BytesIO(), 0
    encoding = encoding_of(headers)
    unpacker = None if encoding == "identity" else Unpacker(encoding)
    started = time.monotonic()
    num_received = 0
    more = True
    while more and not is_too_large:
        budget_s = options.body_grace_s + num_received / options.min_body_rate
        chunk, more = await _next_chunk(receive, started + budget_s - time.monotonic())
        num_received += len(chunk)
        for piece in (chunk,) if unpacker is None else unpacker.feed(chunk):
            num_bytes += len(piece)
            is_too_large = num_bytes > limit
            if is_too_large:
                break
            grow(num_bytes)
            body.write(piece)
            if scan is not None and num_bytes - scan.num_bytes >= SLICE_BYTES:
                await _look(scan, body, num_bytes)
            elif scan is None and len(piece) >= SLICE_BYTES:
                await asyncio.sleep(0)  # gives other tasks a turn: a packet may unpack to megabytes
    if is_too_large:
        # Raised at once: `LingeringTransport` drops what the client still sends while it reads the response.
        reason = f"the body is larger than {limit} bytes"
        raise HttpError(413, reason, headers={"connection": "close"})
    if unpacker is not None:
        unpacker.end()
    if scan is not None:
        body.seek(scan.num_bytes)
        scan.feed(body.read(), is_last=True)
    whole = body.getvalue()
    if len(whole) > SLICE_BYTES:
        await asyncio.sleep(0)  # gives other tasks a turn before decoding, which takes long
    return whole


async def _look(scan: "BodyScan", body: BytesIO, num_bytes: int) -> None:
    """Scans the received data, except for less than a slice; other tasks get a turn after each slice."""
    while num_bytes - scan.num_bytes >= SLICE_BYTES:
        body.seek(scan.num_bytes)
        scan.feed(body.read(SLICE_BYTES))
        await asyncio.sleep(0)
    body.seek(num_bytes)


async def _next_chunk(receive: Receive, within_s: float) -> tuple[bytes, bool]:
    # Not `asyncio.timeout`, which accepts another chunk after the time has run out.
    if within_s <= 0:
        raise _too_slow()
    try:
        async with asyncio.timeout(within_s):
            message = await receive()
    except TimeoutError:
        raise _too_slow() from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)


def _too_slow() -> HttpError:
    return HttpError(408, "the body came too slowly", headers={"connection": "close"})


def decode_body(
    body: bytes,
    kind: Any,
    *,
    is_by_value: bool = False,
    long_strings: Sequence[tuple[int, int]] = (),
) -> Any:
    """Decodes a body that `read_body` has scanned to type `kind`; raises `BadRequest` with the path of the invalid
    value. Byte order marks, duplicate keys and text that is not UTF-8 are refused. With `is_by_value`, a number or a
    boolean may be written as another JSON type: 12.0, "0.7", "true", 1. `long_strings` are those of the scan.
    """
    if not body.strip():
        raise BadRequest(None, "the body is empty; a JSON object is needed")
    if body.startswith(_BOM):
        raise BadRequest(None, "the body starts with a byte order mark; send plain UTF-8")
    try:
        if long_strings:
            _refuse_long_words(body, kind, long_strings)
        return msgspec.json.decode(body, type=kind, strict=not is_by_value)
    except msgspec.DecodeError as error:  # includes ValidationError
        text = explain(error, kind)  # the text may repeat parts of the body
        if len(text) > _MAX_MESSAGE_CHARS:
            place = text[-_MAX_MESSAGE_CHARS:].rpartition(" - at `")[2]
            text = f"{text[:_MAX_MESSAGE_CHARS]}... - at `{place}"
        raise BadRequest(_parameter(text), f"{_PATH.sub('', text)}{_place(text)}") from None
    except RecursionError:
        raise BadRequest(None, "the body is nested too deeply") from None


def _refuse_long_words(body: bytes, kind: Any, long_strings: Sequence[tuple[int, int]]) -> None:
    """Raises `ValidationError` if a long string stands where only certain words are allowed.

    The decoder's own error repeats the string, which takes 0.3 s for 12 MiB. No word is that long, so the body is
    decoded with a short text in place of each long string; other errors are left to the whole body.
    """
    begins = (0, *(end for _, end in long_strings))
    ends = (*(begin for begin, _ in long_strings), len(body))
    short = _SHORT.join(body[begin:end] for begin, end in zip(begins, ends, strict=True))
    try:
        msgspec.json.decode(short, type=kind)
    except msgspec.ValidationError as error:
        if is_refused_value(error):
            raise
    except msgspec.DecodeError:
        pass


def _parameter(text: str) -> str | None:
    path, missing = _PATH.search(text), _MISSING.search(text)
    names = [match[1] for match in (path, missing) if match and match[1]]
    return ".".join(names) or None


def _place(text: str) -> str:
    path = _PATH.search(text)
    return f", at {path[1]}" if path and path[1] else ""


class BodyScan:
    """Scans a body piece by piece, in order; raises 413 as soon as it is too large. `num_bytes` were scanned."""

    num_bytes = _num_values = _num_parts = 0

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max_values = max_values
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._objects: list[dict[bytes, None]] = []  # the open ones, with their keys
        self._outer: dict[bytes, None] = {}  # keys of the first object
        self._pieces = JsonPieces()

    def feed(self, piece: bytes, *, is_last: bool = False) -> None:
        """Scans at most `SLICE_BYTES` more."""
        self._check_text(piece, is_last=is_last)
        data, bare = self._pieces.feed(piece, is_last=is_last)
        if data:
            self._count(data, bare)

    @property
    def long_strings(self) -> Sequence[tuple[int, int]]:
        """The first byte and the end of each string that was too long to be scanned whole."""
        return self._pieces.long_strings

    def field_names(self) -> list[str]:
        """Returns the field names of a body that is an object, in order. Inner objects are left out."""
        return list(map(msgspec.json.decode, self._outer))

    def _check_text(self, piece: bytes, *, is_last: bool) -> None:
        try:
            self._utf8.decode(piece, is_last)
        except UnicodeDecodeError as error:
            held = len(self._utf8.getstate()[0])
            at = self.num_bytes - held + error.start
            raise BadRequest(None, f"the body is not UTF-8 (byte {at})") from None
        self.num_bytes += len(piece)

    def _count(self, data: bytes, bare: bytes) -> None:
        num_keys = bare.count(b":")
        self._num_parts += num_keys + bare.count(b"[") + bare.count(b"{")
        self._num_values += num_keys + bare.count(b",")
        if self._num_parts > MAX_PARTS:
            raise HttpError(
                413,
                f"the body has more than {MAX_PARTS} objects, arrays and keys; send it in parts",
            )
        if self._num_values > self._max_values:
            raise HttpError(
                413, f"the body has more than {self._max_values} values; send it in parts"
            )
        if num_keys or b"{" in bare or b"}" in bare:
            self._refuse_repeated_keys(data)

    def _refuse_repeated_keys(self, data: bytes) -> None:
        """Refuses duplicate keys: different readers would use different values."""
        at = 0
        # `match` at each position, not `search`, which would scan the rest of the body each time.
        while match := _KEYS.match(data, at):
            at = match.end()
            if match[1] == b"{":
                keys: dict[bytes, None] = {}
                if not self._outer:
                    self._outer = keys
                self._objects.append(keys)
            elif not self._objects:
                raise BadRequest(
                    None, f"the body is not JSON: {_shown(match[1])!r} is in no object"
                )
            elif match[1] == b"}":
                self._objects.pop()
            else:
                self._add_key(match[2])

    def _add_key(self, key: bytes) -> None:
        if key == LONG:
            raise BadRequest(None, f"a key has more than {SLICE_BYTES} bytes")
        if b"\\" in key:
            try:
                key = msgspec.json.encode(msgspec.json.decode(key))
            except msgspec.DecodeError as error:
                raise BadRequest(None, str(error)) from None
        if key in self._objects[-1]:
            name = _shown(key[1:-1])
            raise BadRequest(name, f"duplicate key {name!r}")
        self._objects[-1][key] = None


async def scan_message(data: bytes, max_values: int = MAX_VALUES) -> BodyScan:
    """Scans a message of a WebSocket as the body of a request is scanned; other tasks get a turn after each slice."""
    scan = BodyScan(max_values)
    for start in range(0, len(data), SLICE_BYTES):
        piece = data[start : start + SLICE_BYTES]
        scan.feed(piece, is_last=start + SLICE_BYTES >= len(data))
        await asyncio.sleep(0)
    return scan


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")[:100]


class Strictness:
    """How a server answers deviations from the APIs; each kind of deviation is logged once."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._logged: set[tuple[str, str]] = set()

    def is_by_value(self, endpoint: Endpoint) -> bool:
        """True if a number or a boolean in a body may be written as another JSON type."""
        return not (self._is_strict or endpoint.is_strict)

    def judge(self, endpoint: Endpoint, names: Iterable[str], value: Any) -> dict[str, str]:
        """The headers that report deviations; raises `BadRequest` with the first one if they are not accepted."""
        found = [*unknown_fields(names, endpoint.body), *endpoint.deviations(value)]
        if not found:
            return {}
        if not self.is_by_value(endpoint):
            raise BadRequest(found[0].parameter, found[0].reason)
        for deviation in found:
            self._log(endpoint.path, deviation)
        # Code 299: a warning about this request, to be shown to a person.
        return {"warning": ", ".join(f'299 - "{_quotable(one.reason)}"' for one in found)}

    def _log(self, path: str, deviation: Deviation) -> None:
        key = (path, deviation.parameter)
        if key not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(key)
            log.warning("%s: %s (logged once; --strict refuses it)", path, deviation.reason)


def unknown_fields(names: Iterable[str], kind: Any) -> Iterable[Deviation]:
    """Yields a deviation for the first of `names` that is not a field of `kind`, if `kind` is a struct."""
    # Not `structs.fields`, which resolves all types each time: 0.8 ms for a chat body.
    known: Sequence[str] | None = getattr(kind, "__struct_encode_fields__", None)
    if known is None:
        return
    for name in names:
        if name not in known:
            shown = name[:_MAX_NAME_CHARS]
            yield Deviation(shown, f"unknown field {shown!a}{_hint(kind, shown)}")
            return


@lru_cache(maxsize=256)
def _hint(kind: type[msgspec.Struct], name: str) -> str:
    close = difflib.get_close_matches(name, kind.__struct_encode_fields__, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _quotable(text: str) -> str:
    """The text in a form that a header may contain between quotes."""
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
