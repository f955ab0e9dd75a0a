"""Unpacks compressed bodies piece by piece, each small enough not to delay other tasks."""

import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from weft.core.checks.json_pieces import SLICE_BYTES
from weft.core.errors import BadRequest

# zlib's window bits: 31 reads gzip, 15 its own format.
_WINDOW_BITS: Mapping[str, int] = MappingProxyType({"gzip": 31, "x-gzip": 31, "deflate": 15})
ENCODINGS = ("identity", *_WINDOW_BITS)


def encoding_of(headers: Mapping[str, str]) -> str:
    """How a body is encoded."""
    return headers.get("content-encoding", "identity").strip().lower()


class Unpacker:
    """Unpacks a body with one of `ENCODINGS` but identity; raises `BadRequest` for invalid data."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream = zlib.decompressobj(_WINDOW_BITS[encoding])

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the unpacked data in slices; the caller stops at its limit."""
        stream = self._stream
        while data and not stream.eof:
            try:
                piece = stream.decompress(data, SLICE_BYTES)
            except zlib.error as error:
                raise BadRequest(None, f"the body is not {self._encoding}: {error}") from None
            yield piece
            data = stream.unconsumed_tail
        if data or stream.unused_data:
            raise BadRequest(None, f"the body has more data after its {self._encoding} stream")

    def end(self) -> None:
        """The body is complete."""
        if not self._stream.eof:
            raise BadRequest(None, f"the body ends inside its {self._encoding} stream")
