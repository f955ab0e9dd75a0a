"""Estimates how long a body would take to parse, before it is parsed on the event loop.

Decoding holds the interpreter's lock on whatever thread it runs, so a body that may take more than 5 ms is parsed in
another process.
"""

from typing import Final

from weft.epp.request.values import Refused

MAX_READ_S: Final = 0.005
# Maximum reading time of each part of a body, measured on a core of 2.8 GHz: an object may become a message or a
# content part, a comma ends a value, and a character may be an escape.
_OBJECT_S: Final = 6e-6
_VALUE_S: Final = 0.5e-6
_BYTE_S: Final = 2e-8
MAX_READ_BYTES: Final = int(MAX_READ_S / _BYTE_S)
# Maximum parts of a protobuf message: each takes 2 µs, mostly as a string of a list.
MAX_READ_PARTS: Final = 2048


def check_reading_time(body: bytes) -> None:
    """Raises `Refused` (413) if parsing this unpacked body may take longer than `MAX_READ_S`."""
    if _longest_s(body) > MAX_READ_S:
        raise Refused(413, "the body takes too long to be read on the event loop")


def _longest_s(body: bytes) -> float:
    if len(body) > MAX_READ_BYTES:
        return len(body) * _BYTE_S
    return len(body) * _BYTE_S + body.count(b"{") * _OBJECT_S + body.count(b",") * _VALUE_S
