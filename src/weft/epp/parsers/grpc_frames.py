"""gRPC's frames: five bytes of head (is it compressed, how long), then the message."""

from typing import Final

from weft.epp.decision.request import Refused
from weft.epp.parsers.inflate import ENCODINGS, can_inflate, inflate
from weft.epp.parsers.parser import Call, malformed

HEAD_BYTES: Final = 5


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
    if not can_inflate(encoding):
        raise malformed(f"grpc-encoding must be one of {', '.join(ENCODINGS)}, not {encoding!r}")
    try:
        return inflate(message, encoding, max_bytes)
    except Refused as refused:
        raise Refused(refused.status, f"invalid gRPC payload: {refused.message}") from refused


def frame(message: bytes) -> bytes:
    """A message as one frame, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message
