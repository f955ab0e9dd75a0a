"""Decodes request bodies: gRPC frames and compression.

A frame has a head of five bytes (compressed flag, length), followed by the message. The unpacked size is bounded, and
the cost is bounded by the compressed size.
"""

import zlib
from typing import Final

from weft.epp.request.parsers.parser import Call, malformed
from weft.epp.request.parsers.reading_time import check_reading_time
from weft.epp.request.values import Refused

HEAD_BYTES: Final = 5
# zlib's window bits: 31 reads gzip, 15 its own format.
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
ENCODINGS: Final = ("gzip", "deflate", "identity")
# A body may consist of several streams; each costs as much time as kilobytes of data. The limit allows what common
# writers produce for the largest body: bgzip starts a new stream every 64 KiB.
MAX_STREAMS: Final = 1024
# Data after the end of a stream is copied; the copy is limited to this size.
_PIECE_BYTES: Final = 16 * 2**10


def first_message(call: Call) -> bytes:
    """Returns the unpacked message of a unary gRPC call. Later frames are ignored."""
    body = call.body
    if len(body) < HEAD_BYTES:
        raise malformed(f"invalid gRPC payload: {len(body)} bytes are not a gRPC frame")
    flag, end = body[0], HEAD_BYTES + int.from_bytes(body[1:HEAD_BYTES], "big")
    if flag > 1:
        raise malformed(f"invalid gRPC payload: the first byte must be 0 or 1, not {flag}")
    if end > len(body):
        raise malformed(f"invalid gRPC payload: {end} bytes are announced, but {len(body)} arrived")
    message = body[HEAD_BYTES:end]
    if flag:
        message = unpack(message, call.headers.get("grpc-encoding", ""), call.max_body_bytes)
    if call.is_on_loop:
        check_reading_time(message)
    return message


def unpack(message: bytes, encoding: str, max_bytes: int) -> bytes:
    """Returns a decompressed message. Raises `Refused` if the message is invalid or unpacks to more than
    `max_bytes`.
    """
    if encoding == "identity":
        return message
    if not can_inflate(encoding):
        raise malformed(f"grpc-encoding must be one of {', '.join(ENCODINGS)}, not {encoding!r}")
    try:
        return inflate(message, encoding, max_bytes)
    except Refused as refused:
        raise Refused(refused.status, f"invalid gRPC payload: {refused.message}") from refused


def frame(message: bytes) -> bytes:
    """Returns the message in an uncompressed gRPC frame."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def can_inflate(encoding: str) -> bool:
    """True if the encoding is supported."""
    return encoding in _WINDOW_BITS


def inflate(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """Returns the decompressed body. Raises `Refused` if the body is malformed, truncated or too large."""
    plain = bytearray()
    unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
    num_streams = 1
    for start in range(0, len(data), _PIECE_BYTES):
        piece = data[start : start + _PIECE_BYTES]
        while piece:
            if unpacker.eof:
                num_streams += 1
                if num_streams > MAX_STREAMS:
                    raise malformed(f"more than {MAX_STREAMS} {encoding} streams in a row")
                unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
            try:
                plain += unpacker.decompress(piece, max_bytes + 1 - len(plain))
            except zlib.error as err:
                raise malformed(f"not {encoding}: {err}") from err
            if len(plain) > max_bytes:
                raise Refused(413, f"it unpacks to more than {max_bytes} bytes")
            piece = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise malformed(f"the {encoding} stream ends early")
    return bytes(plain)
