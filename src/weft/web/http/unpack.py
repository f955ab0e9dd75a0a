"""Compressed bodies, unpacked piece by piece as they come: no more at a time than others can wait for."""

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
    """A body of one of `ENCODINGS`; `BadRequest` for what is not of it."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        bits = _WINDOW_BITS.get(encoding)
        self._stream = None if bits is None else zlib.decompressobj(bits)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` goes on with, in slices; the caller stops where it is enough."""
        stream = self._stream
        if stream is None:
            yield data
            return
        while data and not stream.eof:
            try:
                piece = stream.decompress(data, SLICE_BYTES)
            except zlib.error as error:
                raise BadRequest(None, f"the body is not {self._encoding}: {error}") from None
            yield piece
            data = stream.unconsumed_tail
        if data or stream.unused_data:
            raise BadRequest(None, f"the body goes on behind its {self._encoding} stream")

    def end(self) -> None:
        """The body is complete."""
        if self._stream is not None and not self._stream.eof:
            raise BadRequest(None, f"the body ends inside its {self._encoding} stream")
