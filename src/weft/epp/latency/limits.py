"""`StrictestLimits`: the strictest time-per-token SLO of the requests that run at each endpoint."""

from collections.abc import Hashable


class StrictestLimits:
    """The SLOs of running requests in seconds per token, and the smallest one of each endpoint."""

    def __init__(self) -> None:
        self._of: dict[Hashable, dict[int, float]] = {}  # by endpoint, then by ticket
        self._least: dict[Hashable, float] = {}

    def add(self, endpoint: Hashable, ticket_id: int, limit_s: float | None) -> None:
        """Adds the SLO of a request that was sent to the endpoint."""
        if limit_s is None:
            return
        self._of.setdefault(endpoint, {})[ticket_id] = limit_s
        self._least[endpoint] = min(limit_s, self._least.get(endpoint, limit_s))

    def remove(self, endpoint: Hashable, ticket_id: int) -> None:
        """Removes the SLO of a finished request."""
        limits = self._of.get(endpoint)
        if limits is None or (limit_s := limits.pop(ticket_id, None)) is None:
            return
        if not limits:
            self.forget(endpoint)
        elif limit_s <= self._least[endpoint]:
            self._least[endpoint] = min(limits.values())

    def strictest(self, endpoint: Hashable) -> float | None:
        """Returns the strictest SLO in seconds per token; None if no request at the endpoint has one."""
        return self._least.get(endpoint)

    def forget(self, endpoint: Hashable) -> None:
        """Removes an endpoint that left the pool."""
        self._of.pop(endpoint, None)
        self._least.pop(endpoint, None)
