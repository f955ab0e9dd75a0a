"""Limits on the memory that a peer can make the picker use."""

from dataclasses import dataclass
from typing import Annotated

from weft.core.values.declare import Flag
from weft.epp.request.values import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerLimits:
    """Limits of the picker. `max_held_bytes` and `max_streams` are for all requests together; the others are per
    request.

    `max_pick_s` is a last resort, for a director that hangs: Envoy's own timeout does not apply to requests whose body
    it streams.
    """

    max_body_bytes: Annotated[
        int, Flag("Maximum size of a request body; larger ones get 413.", "Server", is_size=True)
    ] = 64 * 2**20
    max_header_bytes: int = 64 * 2**10
    max_held_bytes: int = 2**30
    max_streams: Annotated[
        int,
        Flag(
            "Maximum number of concurrent requests; further ones get 503.",
            "Server",
            name="max_concurrent_requests",
        ),
    ] = 8192
    max_pick_s: float = 120.0


class Held:
    """Number of bytes of the bodies that have not arrived completely."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Reserves memory for a piece of a body. Raises `Refused` if the limit is reached."""
        if self.num_bytes + num_bytes > self._max_bytes:
            raise Refused(503, "the picker holds too many bytes of requests; try again")
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Releases reserved memory."""
        self.num_bytes -= num_bytes
