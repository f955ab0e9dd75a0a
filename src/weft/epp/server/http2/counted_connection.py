"""`h2`'s connection of a server, with a count of its streams."""

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection

_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    # Only four headers are read, and those of responses are constants.
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class CountedConnection(H2Connection):
    """An `H2Connection` that is told how many streams are open.

    The original walks over all streams for each new one, which takes a millisecond if thousands of requests wait.
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
