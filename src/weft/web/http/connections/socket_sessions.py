"""Sessions over WebSockets: their limits, their messages, and the requests that they make."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from weft.core.errors import Overloaded
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import Answer, Call
from weft.web.http.problem import HttpError

AnyCall = TypeVar("AnyCall", bound=Call)

# Close codes of RFC 6455: a message that is no text, and a session that is over.
_POLICY: Final = 1008
DEADLINE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one session, and of all sessions of one endpoint together. `max_chars` bounds what a session keeps."""

    max_sessions: int = 256
    max_items: int = 1000
    max_chars: int = 4 * 2**20
    idle_s: float = 600.0
    max_s: float = 3600.0


OPEN: Final = ("weft:open_sessions", "path", "Number of open sessions over WebSockets.")
SESSIONS: Final = (
    "weft:sessions",
    "path, outcome",
    "Number of sessions over WebSockets, by outcome: opened, or refused because the maximum was open.",
)


class SessionSeries:
    """The series of all sessions of a server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name, label, text = OPEN
        self.num_open = Gauge(name, text, (label,), registry=registry)
        name, labels, text = SESSIONS
        self.sessions = Counter(name, text, labels.split(", "), registry=registry)


class SessionCounter:
    """Counts the open sessions of one endpoint, whose path is `path`."""

    def __init__(
        self, name: str, limits: SessionLimits, path: str, series: SessionSeries | None = None
    ) -> None:
        series = series or SessionSeries(CollectorRegistry())
        self._name = name
        self.limits = limits
        self._num_open = 0
        self._gauge = series.num_open.labels(path)
        self._opened, self._refused = (
            series.sessions.labels(path, outcome) for outcome in ("opened", "refused")
        )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a session during the block; raises `Overloaded` if the maximum is open."""
        if self._num_open >= self.limits.max_sessions:
            self._refused.inc()
            raise Overloaded(
                f"{self._num_open} {self._name} sessions are open; wait for one to end"
            )
        self._num_open += 1
        self._opened.inc()
        self._gauge.set(self._num_open)
        try:
            yield
        finally:
            self._num_open -= 1
            self._gauge.set(self._num_open)


class SessionOver(Exception):
    """The server ends a session, with this close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Inbox:
    """The messages of a session, within its limits of time. A session with `is_busy` is not idle."""

    def __init__(self, socket: Socket, limits: SessionLimits, is_busy: Callable[[], bool]) -> None:
        self._socket = socket
        self._limits = limits
        self._is_busy = is_busy
        self._ends_at = asyncio.get_running_loop().time() + limits.max_s

    async def next(self) -> str | None:
        """The next message; None if the client has left. Raises `SessionOver` at the end of the session."""
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._ends_at - loop.time()
            try:
                async with asyncio.timeout(min(self._limits.idle_s, left_s)):
                    message = await self._socket.receive()
            except TimeoutError:
                if self._is_busy() and loop.time() < self._ends_at:
                    continue
                raise SessionOver(DEADLINE, "the session was idle or open for too long") from None
            if isinstance(message, bytes):
                raise SessionOver(_POLICY, "events are texts")
            return message


def to_request(call: AnyCall, **changes: Any) -> AnyCall:
    """A call for one request of a session, which counts as a request of its tenant."""
    tenant = None if call.exchange is None else call.exchange.tenant
    if tenant is not None:
        tenant.admit()
    return replace(call, request_id=uuid.uuid4().hex, **changes)


async def refuse_plain(_call: Call) -> Answer:
    """Refuses a request without the headers of an upgrade."""
    raise HttpError(
        400, "this path is a WebSocket: send the headers of an upgrade", code="upgrade_required"
    )
