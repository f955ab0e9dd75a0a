"""Lenient reading of JSON values. The picker leaves errors in a request to the server."""

import json
import re
from typing import Final

import msgspec

# Maximum size of a body with lenient JSON that is repaired: reading it again takes a few milliseconds.
_MAX_MENDED_BYTES: Final = 2**18
_TRUE: Final = frozenset({"true", "1", "yes", "on", "y", "t"})
_ESCAPE: Final = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_MAX_NUMBER_CHARS: Final = 40
_text = msgspec.json.Decoder(str)


# Stands for a missing member. (`Raw | None` would accept only null.)
ABSENT = msgspec.Raw()


def to_flag(raw: msgspec.Raw) -> bool:
    """True if the JSON value means true, as a Boolean, a number or a string."""
    return _bare(raw).lower() in _TRUE


def to_whole(raw: msgspec.Raw) -> int | None:
    """Returns a whole number of at least 0, also if written as 12.0; None for any other value."""
    try:
        number = float(_bare(raw))
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() and number < 2**63 else None


def to_text(raw: msgspec.Raw) -> str:
    """Returns the text of a JSON value; "" for a value of another type."""
    if raw is ABSENT:
        return ""
    if bytes(memoryview(raw)[:1]) != b'"':
        return ""
    try:
        return _text.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = mend(memoryview(raw))
        return "" if mended is None else _text.decode(mended)


def mend(body: bytes | memoryview) -> bytes | None:
    """Repairs JSON that strict readers refuse: NaN becomes null, half of a surrogate pair becomes a replacement
    character. Returns None if there is nothing to repair, or the body is too long to be read again.
    """
    if len(body) > _MAX_MENDED_BYTES:
        return None
    try:
        value = json.loads(bytes(body), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return _ESCAPE.sub(_paired, json.dumps(value)).encode()


def _paired(escape: re.Match[str]) -> str:
    """Returns a JSON escape unchanged if it is a character, and a replacement character for half of a surrogate
    pair.
    """
    text = escape[0]
    return "\\ufffd" if len(text) == len("\\ud800") else text


def _bare(raw: msgspec.Raw) -> str:
    """Returns a short JSON value without its quotes."""
    view = memoryview(raw)
    if len(view) > _MAX_NUMBER_CHARS:
        return ""
    return bytes(view).decode("utf-8", "replace").strip('" \t\r\n')
