"""JSON as the picker reads it: by value, and without a judgement. What is wrong with a request the server says."""

import json
import re
from typing import Final

import msgspec

# Of a body that is not JSON as it stands: reading it again takes a few milliseconds for so many bytes.
_MAX_MENDED_BYTES: Final = 2**18
_TRUE: Final = frozenset({"true", "1", "yes", "on", "y", "t"})
_ESCAPE: Final = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_MAX_NUMBER_CHARS: Final = 40
_text = msgspec.json.Decoder(str)


# A member that was not sent. (`Raw | None` would refuse everything but null.)
ABSENT = msgspec.Raw()


def to_flag(raw: msgspec.Raw) -> bool:
    """Whether a member is true, however that is written."""
    return _bare(raw).lower() in _TRUE


def to_whole(raw: msgspec.Raw) -> int | None:
    """A member's number, such as 12.0; None where it is no whole number from 0."""
    try:
        number = float(_bare(raw))
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() and number < 2**63 else None


def to_text(raw: msgspec.Raw) -> str:
    """A member's text; none of another type."""
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
    """JSON without what other readers take: NaN is null, and half of a surrogate pair a mark.

    None where there is nothing of the kind, or where it is too long to be read again.
    """
    if len(body) > _MAX_MENDED_BYTES:
        return None
    try:
        value = json.loads(bytes(body), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return _ESCAPE.sub(_paired, json.dumps(value)).encode()


def _paired(escape: re.Match[str]) -> str:
    """An escape that stands for a character, or a mark for half of one."""
    text = escape[0]
    return "\\ufffd" if len(text) == len("\\ud800") else text


def _bare(raw: msgspec.Raw) -> str:
    """A short value without its quotes."""
    view = memoryview(raw)
    if len(view) > _MAX_NUMBER_CHARS:
        return ""
    return bytes(view).decode("utf-8", "replace").strip('" \t\r\n')
