"""A director that does as it is told, and remembers what it was told of."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.epp.decision.tickets import Decision, Ending, Ticket
from weft.epp.request.values import Drop, InferenceRequest, Refused, Usage


def make_ticket() -> Ticket:
    """A ticket that nothing is counted by."""
    return Ticket(
        id=1,
        endpoints=(),
        started=0.0,
        labels=("", "", "", ""),
        is_streaming=False,
        is_followed=True,
    )


Choose = Callable[[InferenceRequest], Decision]


class FakeDirector:
    """Sends requests to its endpoints in turn, or where `choose` says."""

    def __init__(self, endpoints: Sequence[str] = ("10.0.0.1:8000",), **decision: Any) -> None:
        self.endpoints = tuple(endpoints)
        self.decision = decision
        self.choose: Choose | None = None
        self.refusal: Refused | None = None
        self.error: Exception | None = None
        self.delay_s = 0.0
        self.is_ready = True
        self.max_wait_s = 0.0
        self.response_headers: dict[str, str] = {}
        self.end_metadata: dict[str, Any] = {}
        self.requests: list[InferenceRequest] = []
        self.subsets: list[tuple[str, ...] | None] = []
        self.statuses: list[int] = []
        self.num_first_tokens = 0
        self.num_pieces = 0
        self.sizes: list[int] = []
        self.usages: list[Usage] = []
        self.endings: list[Ending] = []
        self.num_any = 0
        self.stores: list[str] = []  # of the requests that any endpoint may serve

    async def pick(self, request: InferenceRequest, subset: tuple[str, ...] | None) -> Decision:
        """The next endpoint of those allowed."""
        self.requests.append(request)
        self.subsets.append(subset)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        if self.refusal is not None:
            raise self.refusal
        if self.choose is not None:
            return self.choose(request)
        endpoint = self._next(subset, len(self.requests))
        return Decision(endpoints=(endpoint,), ticket=make_ticket(), **self.decision)

    def pick_any(self, subset: tuple[str, ...] | None, *, is_grpc: bool, store: str = "") -> str:
        """The next endpoint of those allowed."""
        self.num_any += 1
        self.stores.append(store)
        self.subsets.append(subset)
        return self._next(subset, self.num_any)

    def _next(self, subset: tuple[str, ...] | None, turn: int) -> str:
        allowed = [one for one in self.endpoints if subset is None or one in subset]
        if not allowed:
            raise Refused(503, "no endpoint is ready", Drop.NO_ENDPOINTS)
        return allowed[(turn - 1) % len(allowed)]

    def on_response_headers(self, ticket: Ticket, status: int) -> Mapping[str, str]:
        """Remember the status."""
        self.statuses.append(status)
        return self.response_headers

    def on_first_token(self, ticket: Ticket) -> None:
        """Count."""
        self.num_first_tokens += 1

    def on_piece(self, ticket: Ticket) -> None:
        """Count."""
        self.num_pieces += 1

    def on_size(self, ticket: Ticket, num_bytes: int) -> None:
        """Remember."""
        self.sizes.append(num_bytes)

    def on_usage(self, ticket: Ticket, usage: Usage) -> None:
        """Remember."""
        self.usages.append(usage)

    def on_end(self, ticket: Ticket, ending: Ending) -> Mapping[str, Any]:
        """Remember."""
        self.endings.append(ending)
        return self.end_metadata
