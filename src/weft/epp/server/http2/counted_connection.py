"""`h2`'s connection of a server, with a count of its streams, and a short way for the frames of responses."""

import struct
from functools import lru_cache
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.stream import H2Stream, StreamInputs
from hpack import Encoder, NeverIndexedHeaderTuple

from weft.epp.server.http2.framing import Headers

_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    # Only four headers are read, and those of responses are constants.
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
# The head of a frame: the upper 16 and the lower 8 bits of its length, its kind, its flags, and its stream.
_HEAD: Final = struct.Struct(">HBBBL")
_DATA: Final = 0
_HEADERS: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4


class CountedConnection(H2Connection):
    """An `H2Connection` that is told how many streams are open, and writes the frames of responses itself.

    The original walks over all streams for each new one, which takes a millisecond if thousands of requests wait. Its
    own frames take several times the processor time of the bytes that are written here (docs/decisions/0140).
    """

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.num_open = 0

    @property
    def open_inbound_streams(self) -> int:
        """Number of open streams, as the owner counts them."""
        return self.num_open

    def forget(self, stream_id: int) -> None:
        """Removes a closed stream, as the walk does."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._closed_streams[stream_id] = stream.closed_by

    def write_headers(self, stream: H2Stream, headers: Headers, *, ends: bool) -> None:
        """Writes headers or trailers of the response on an open stream. They take no place in the table of the peer."""
        stream.state_machine.process_input(StreamInputs.SEND_HEADERS)
        flags = _END_HEADERS
        if ends:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
            flags |= _END_STREAM
        # Without headers, the encoder writes what the peer has to be told about the size of its table.
        self._write(_HEADERS, flags, stream, self.encoder.encode(()) + _encoded(headers))

    def write_data(self, stream: H2Stream, data: bytes) -> int:
        """Writes the bytes that fit the windows of an open stream; returns their number."""
        fits = min(
            len(data), self.outbound_flow_control_window, stream.outbound_flow_control_window
        )
        most = self.max_outbound_frame_size
        for start in range(0, fits, most):
            self._write(_DATA, 0, stream, data[start : min(start + most, fits)])
        sent = max(fits, 0)
        self.outbound_flow_control_window -= sent
        stream.outbound_flow_control_window -= sent
        return sent

    def _write(self, kind: int, flags: int, stream: H2Stream, body: bytes) -> None:
        size = len(body)
        self._data_to_send += (
            _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream.stream_id) + body
        )


@lru_cache(maxsize=64)
def _encoded(headers: Headers) -> bytes:
    """Returns the headers in HPACK, without entries of a table, so that they are the same on all connections."""
    return Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in headers])
