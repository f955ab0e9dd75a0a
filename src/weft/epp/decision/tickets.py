"""The decision for a request, and the ticket that exists until the response has ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any, Final

import msgspec

from weft.core.headers import DECISION
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Usage

_MAX_EXPLANATION: Final = 4096  # gateways and clients limit the size of headers


class Ending(StrEnum):
    """How a response ended."""

    NATURAL = "natural"
    DISCONNECTED = "client-disconnected"
    ERROR = "error"
    EVICTED = "evicted"
    UNFOLLOWED = "unfollowed"  # the picker stopped; the response went on


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTimes:
    """Times of a response by the picker's clock, and its number of tokens."""

    ticket_id: int
    arrived: float  # arrival of the request
    first_token_at: float
    ended: float
    num_tokens: int  # as reported, or else the number of received pieces, as in the reference
    is_streaming: bool

    @property
    def ttft_s(self) -> float:
        """Seconds from the request's arrival to the first token."""
        return self.first_token_at - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None if there is only one token."""
        if self.num_tokens < 2:
            return None
        return (self.ended - self.first_token_at) / (self.num_tokens - 1)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was routed and whose response has not ended."""

    id: int
    endpoints: Sequence[Endpoint]  # all endpoints that work on the request
    started: float
    labels: tuple[str, str, str, str]  # values of the metrics' request labels
    is_streaming: bool
    is_followed: bool
    num_prompt_tokens: int = 0  # as reported or estimated
    num_body_bytes: int = 0  # of the response body
    num_pieces: int = 0  # received pieces of the response body
    status: int = 200
    first_token_at: float | None = None
    last_piece_at: float | None = None
    usage: Usage = field(default_factory=Usage)
    is_over: bool = False
    revoke: Callable[[], None] | None = None  # ends the response early; None if that is impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Destination of a request. Addresses are "host:port", IPv6 in brackets."""

    # The destination first; fallbacks only if the picker is configured to name them.
    endpoints: tuple[str, ...]
    set_headers: Mapping[str, str] = field(default_factory=dict)  # headers for the model server
    response_headers: Mapping[str, str] = field(default_factory=dict)  # headers for the client
    metadata: Mapping[str, Any] = field(
        default_factory=dict
    )  # in dynamic metadata, under "envoy.lb"
    rewritten_model: str | None = None  # model name to write into the body
    tracks_response: bool = False  # True if a plugin or a metric needs the response phase
    # Ticket of a scheduled request, passed on to the response's events.
    ticket: Ticket | None = None

    def with_header(self, name: str, value: str) -> "Decision":
        """The decision with one more header for the model server."""
        return replace(self, set_headers={**self.set_headers, name: value})

    def explained(self, summary: Mapping[str, Any] | None) -> "Decision":
        """The decision with its explanation, in a response header and in metadata."""
        if summary is None:
            return self
        text = msgspec.json.encode(summary).decode()[:_MAX_EXPLANATION]
        return replace(
            self,
            response_headers={**self.response_headers, DECISION: text},
            metadata={**self.metadata, DECISION: summary},
        )


class OpenTickets:
    """Tickets of followed requests, oldest first. A sweep removes old ones, so that a response whose end is never
    reported does not stay for ever.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._ids = count(1)
        self._open: dict[int, tuple[float, Ticket]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """Returns a number that no other ticket has."""
        return next(self._ids)

    def add(self, ticket: Ticket, now: float) -> None:
        """Adds a followed ticket. Its age counts from the dispatch, without the wait in the queue."""
        self._open[ticket.id] = now, ticket

    def close(self, ticket: Ticket) -> bool:
        """Removes a ticket; returns True for the first call only."""
        if ticket.is_over:
            return False
        ticket.is_over = True
        self._open.pop(ticket.id, None)
        return True

    def expired(self, now: float) -> list[Ticket]:
        """Returns the tickets that are older than the limit."""
        old = []
        for opened, ticket in self._open.values():
            if now - opened <= self._ttl_s:
                break
            old.append(ticket)
        return old
