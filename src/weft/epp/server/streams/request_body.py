"""The body of one request while the picker holds it."""

from collections.abc import Sequence

from weft.epp.request.values import Refused
from weft.epp.server.limits import Held


class RequestBody:
    """Pieces of a body in order, counted in `held` until `release`."""

    def __init__(self, held: Held, max_bytes: int) -> None:
        self._held = held
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    @property
    def pieces(self) -> Sequence[bytes]:
        """The pieces that have arrived."""
        return tuple(self._pieces)

    def check_size(self, num_bytes: int) -> None:
        """Raises `Refused` if a body of this size is too large."""
        if num_bytes > self._max_bytes:
            raise Refused(413, f"the request's body is larger than {self._max_bytes} bytes")

    def add(self, data: bytes) -> None:
        """Adds a piece. Raises `Refused` if the body, or all bodies together, become too large."""
        self.check_size(self._num_bytes + len(data))
        if data:
            self._held.take(len(data))
            self._pieces.append(data)
            self._num_bytes += len(data)

    def replace(self, pieces: Sequence[bytes]) -> None:
        """Counts `pieces`, which the caller passes on, in place of the received body."""
        self.release()
        num_bytes = sum(map(len, pieces))
        self._held.take(num_bytes)
        self._num_bytes = num_bytes

    def release(self) -> None:
        """Drops the body and what is counted of it."""
        self._held.give(self._num_bytes)
        self._num_bytes = 0
        self._pieces.clear()
