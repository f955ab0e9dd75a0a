"""Compressed bytes to plain ones, never more than a bound of them."""

import zlib
from typing import Final

from weft.epp.decision.request import Refused
from weft.epp.parsers.parser import malformed

# zlib's window bits: 31 reads gzip, 15 its own format.
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
ENCODINGS: Final = ("gzip", "deflate", "identity")


def can_inflate(encoding: str) -> bool:
    """Whether bytes of this encoding can be read here."""
    return encoding in _WINDOW_BITS


def inflate(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """All of it; `Refused` if it is not of this encoding, ends early, or grows too large."""
    plain = b""
    while True:
        unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
        try:
            plain += unpacker.decompress(data, max_bytes + 1 - len(plain))
        except zlib.error as err:
            raise malformed(f"not {encoding}: {err}") from err
        if len(plain) > max_bytes:
            raise Refused(413, f"it unpacks to more than {max_bytes} bytes")
        if not unpacker.eof:
            raise malformed(f"the {encoding} stream ends early")
        data = unpacker.unused_data
        if not data:  # several streams in a row are one body
            return plain
