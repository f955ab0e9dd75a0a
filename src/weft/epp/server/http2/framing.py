"""gRPC's framing of messages, and the headers and trailers of its responses."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import grpc

HEAD_BYTES: Final = 5  # a flag, and the length of the message
_GRPC: Final = b"application/grpc"
_OPENING: Final = (
    (b":status", b"200"),
    (b"content-type", _GRPC),
    (b"grpc-accept-encoding", b"identity"),
)
_OK: Final = ((b"grpc-status", b"0"),)
_UNITS_S: Final = MappingProxyType(
    {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
)
_MAX_DIGITS: Final = 8
_PRINTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

Headers = tuple[tuple[bytes, bytes], ...]


class UnreadableMessage(Exception):
    """Error: a message of the peer cannot be read."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Deframer:
    """Splits the bytes of a call into messages. Raises `UnreadableMessage` for one that is compressed or larger than
    `max_bytes`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []  # of an incomplete message
        self._num_held = 0
        self._num_wanted = HEAD_BYTES  # bytes to collect before the next look

    @property
    def is_between(self) -> bool:
        """True if no message is incomplete."""
        return not self._num_held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the messages that `data` completes."""
        if self._num_held:
            self._pieces.append(data)
            self._num_held += len(data)
            if self._num_held < self._num_wanted:
                return
            data = b"".join(self._pieces)
        at = 0
        while (end := self._end(data, at)) <= len(data):
            yield data[at + HEAD_BYTES : end]
            at = end
        self._pieces = [data[at:]]
        self._num_held, self._num_wanted = len(data) - at, end - at

    def _end(self, data: bytes, at: int) -> int:
        """Returns where the message that begins at `at` ends, or its head if that is incomplete."""
        if len(data) - at < HEAD_BYTES:
            return at + HEAD_BYTES
        return at + HEAD_BYTES + self._length(data, at)

    def _length(self, held: bytes, at: int) -> int:
        if held[at]:
            raise UnreadableMessage(
                grpc.StatusCode.UNIMPLEMENTED, "grpc-encoding must be identity: messages are not compressed here"
            )  # fmt: skip
        length = int.from_bytes(held[at + 1 : at + HEAD_BYTES], "big")
        if length > self._max_bytes:
            raise UnreadableMessage(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"a message has {length} bytes; at most {self._max_bytes} are taken",
            )
        return length


def framed(message: bytes) -> bytes:
    """Returns the message with its head."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def opening() -> Headers:
    """Returns the headers of a response."""
    return _OPENING


def trailers(code: grpc.StatusCode, details: str) -> Headers:
    """Returns the trailers with the status of a call."""
    if code is grpc.StatusCode.OK:
        return _OK
    number: int = code.value[0]
    found = ((b"grpc-status", b"%d" % number),)
    if not details:
        return found
    return (*found, (b"grpc-message", quote(details, safe=_PRINTED).encode()))


def is_grpc(headers: Mapping[bytes, bytes]) -> bool:
    """True if the headers are those of a gRPC call."""
    kind = headers.get(b"content-type", b"")
    return headers.get(b":method") == b"POST" and kind.startswith(_GRPC)


def timeout_s(headers: Mapping[bytes, bytes]) -> float | None:
    """Returns the seconds that the client gives a call; None without a valid `grpc-timeout`."""
    text = headers.get(b"grpc-timeout", b"").decode("ascii", "replace")
    number, unit = text[:-1], text[-1:]
    is_number = number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
    return int(number) * _UNITS_S[unit] if is_number and unit in _UNITS_S else None
