"""gRPC's frames: five bytes of head (is it compressed, how long), then the message."""

import zlib
from typing import Final

from weft.epp.parsers.parser import Call, malformed
from weft.epp.request import Refused

HEAD_BYTES: Final = 5
# zlib's window bits: 31 reads gzip, 15 its own format.
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


def first_message(call: Call) -> bytes:
    """The message of a unary call, unpacked. What follows it is no business of the picker's."""
    body = call.body
    if len(body) < HEAD_BYTES:
        raise malformed(f"invalid gRPC payload: {len(body)} bytes are no frame")
    flag, end = body[0], HEAD_BYTES + int.from_bytes(body[1:HEAD_BYTES], "big")
    if flag > 1:
        raise malformed(f"invalid gRPC payload: the first byte must be 0 or 1, not {flag}")
    if end > len(body):
        raise malformed(f"invalid gRPC payload: {end} bytes announced, {len(body)} came")
    message = body[HEAD_BYTES:end]
    if not flag:
        return message
    return unpack(message, call.headers.get("grpc-encoding", ""), call.max_body_bytes)


def unpack(message: bytes, encoding: str, max_bytes: int) -> bytes:
    """A compressed message in full; `Refused` if that is impossible or grows too large."""
    if encoding == "identity":
        return message
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise malformed(f"grpc-encoding must be one of gzip, deflate, identity, not {encoding!r}")
    unpacker = zlib.decompressobj(bits)
    try:
        unpacked = unpacker.decompress(message, max_bytes)
    except zlib.error as err:
        raise malformed(f"invalid gRPC payload: not {encoding}: {err}") from err
    if unpacker.unconsumed_tail or (not unpacker.eof and len(unpacked) >= max_bytes):
        raise Refused(413, f"the message unpacks to more than {max_bytes} bytes")
    if not unpacker.eof:
        raise malformed(f"invalid gRPC payload: the {encoding} stream ends early")
    return unpacked


def frame(message: bytes) -> bytes:
    """A message as one frame, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message
