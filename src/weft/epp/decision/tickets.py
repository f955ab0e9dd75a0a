"""The decision for a request, and the ticket that lives until its response ends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Usage


class Ending(StrEnum):
    """How a response ended."""

    NATURAL = "natural"
    DISCONNECTED = "client-disconnected"
    ERROR = "error"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTimes:
    """When a response came, by the picker's clock, and in how many tokens."""

    ticket_id: int
    arrived: float  # the request
    first_token_at: float
    ended: float
    num_tokens: int  # as reported, or else the pieces that came, as the reference counts them
    is_streaming: bool

    @property
    def ttft_s(self) -> float:
        """To the first token, since the request came."""
        return self.first_token_at - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Per token after the first; None if there were none."""
        if self.num_tokens < 2:
            return None
        return (self.ended - self.first_token_at) / (self.num_tokens - 1)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was routed and whose response has not ended."""

    id: int
    endpoints: Sequence[Endpoint]  # every one that works for it
    started: float
    labels: tuple[str, str, str, str]  # the request labels of the metrics
    is_streaming: bool
    is_followed: bool
    num_prompt_tokens: int = 0  # as far as the picker knows
    num_body_bytes: int = 0  # of the response
    num_pieces: int = 0  # of it that came
    status: int = 200
    first_token_at: float | None = None
    last_piece_at: float | None = None
    usage: Usage = field(default_factory=Usage)
    is_over: bool = False
    revoke: Callable[[], None] | None = None  # ends the response early; None: that is not possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Destination of a request. Addresses are "host:port", IPv6 in brackets."""

    endpoints: tuple[str, ...]  # the destination first; more only when a picker is configured to
    set_headers: Mapping[str, str] = field(default_factory=dict)  # for the model server
    response_headers: Mapping[str, str] = field(default_factory=dict)  # for the client
    metadata: Mapping[str, Any] = field(
        default_factory=dict
    )  # in dynamic metadata, under "envoy.lb"
    rewritten_model: str | None = None  # the body must name this model instead
    tracks_response: bool = False  # some plugin or metric needs the response phase
    ticket: Ticket | None = None  # of what was scheduled; comes back with the response's events


class OpenTickets:
    """Followed tickets, oldest first; swept, because an odd end must not leak one."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._ids = count(1)
        self._open: dict[int, tuple[float, Ticket]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """A number no other ticket has."""
        return next(self._ids)

    def add(self, ticket: Ticket, now: float) -> None:
        """Remember a followed ticket, from when it was sent on: how long it waited before does not count."""
        self._open[ticket.id] = now, ticket

    def close(self, ticket: Ticket) -> bool:
        """Closes a ticket; returns True for the first call only."""
        if ticket.is_over:
            return False
        ticket.is_over = True
        self._open.pop(ticket.id, None)
        return True

    def expired(self, now: float) -> list[Ticket]:
        """Returns the tickets older than the limit."""
        old = []
        for opened, ticket in self._open.values():
            if now - opened <= self._ttl_s:
                break
            old.append(ticket)
        return old
