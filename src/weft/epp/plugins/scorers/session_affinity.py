"""`session-affinity-scorer` and `session-affinity-filter`: prefer the endpoint that served the session before."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from weft.epp.config.parameters import Kind, Name, Parameters, Part, Positive, Reference
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import SESSION_ID, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint

MAX_SESSIONS = 100_000
_MAX_ID_CHARS = 256  # clients choose the ids


class EncodedHeaderConfig(Part, frozen=True, kw_only=True):
    """The header that carries the encoded endpoint in responses and requests."""

    header: Name = "x-session-token"


class SessionSource(Part, frozen=True, kw_only=True):
    """A source of session ids: a header of the request, or the attribute that a `session-id-producer` sets."""

    header: Name | None = None
    attribute: Literal["SessionIDDataKey"] | None = None
    producer: Name = SESSION_ID

    def __post_init__(self) -> None:
        if (self.header is None) == (self.attribute is None):
            raise ValueError("needs exactly one of header and attribute")

    def read(self, cycle: Cycle) -> str:
        """Returns the session id of the request; "" if there is none."""
        if self.header is not None:
            return cycle.request.headers.get(self.header.lower(), "")
        return cycle.session_ids.get(self.producer, "")


class SessionIdConfig(Part, frozen=True, kw_only=True):
    """The parts of a request that may contain a session id, in order, and the time for which a session is
    remembered.
    """

    sources: Annotated[tuple[SessionSource, ...], msgspec.Meta(min_length=1)] = (
        SessionSource(header="x-session-id"),
    )
    eviction_ttl_seconds: Positive = 300.0
    eviction_sweep_seconds: Positive = 10.0


class SessionParameters(Parameters, frozen=True, kw_only=True):
    """Whether the client sends the encoded endpoint back, or the picker remembers the session's endpoint."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    profile_name: str | None = None  # None: the profile whose pick is the destination
    encoded_endpoint_header_config: EncodedHeaderConfig = EncodedHeaderConfig()
    session_id_config: SessionIdConfig = SessionIdConfig()

    def references(self) -> Iterable[Reference]:
        """The producers of session ids."""
        for i, source in enumerate(self.session_id_config.sources):
            if source.attribute is not None:
                key = f"sessionIdConfig.sources[{i}].producer"
                yield Reference(key, source.producer, Kind.PRODUCER, SESSION_ID)


@plugin("session-affinity-scorer", Kind.SCORER, SessionParameters, is_alpha=True)
@plugin("session-affinity-filter", Kind.FILTER, SessionParameters, is_alpha=True)
class SessionAffinity:
    """Scores the session's endpoint 1.0 or, as a filter, keeps only that endpoint. A new session has no preferred
    endpoint.
    """

    def __init__(self, parameters: SessionParameters, _: Surroundings) -> None:
        self._parameters = parameters
        self._by_id = parameters.strategy == "session_id"
        self._header = parameters.encoded_endpoint_header_config.header.lower()
        self._sources = parameters.session_id_config.sources
        # Session id to endpoint name and last use, oldest use first.
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._swept_at = 0.0

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for the session's endpoint, otherwise 0.0."""
        name = self._endpoint_name(cycle)
        return [float(endpoint.name == name) for endpoint in candidates]

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns only the session's endpoint if it is a candidate; otherwise all candidates."""
        name = self._endpoint_name(cycle)
        return [endpoint for endpoint in candidates if endpoint.name == name] or candidates

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Stores the session's endpoint, or sends it to the client in a token."""
        picks = schedule.picks.get(self._parameters.profile_name or schedule.primary)
        if not picks:
            return
        if not self._by_id:
            token = base64.b64encode(picks[0].name.encode()).decode()
            cycle.response_headers[self._header] = token
        elif session_id := self._session_id(cycle):
            self._sessions[session_id] = (picks[0].name, cycle.now)
            self._sessions.move_to_end(session_id)
            self._sweep(cycle.now)

    def __len__(self) -> int:
        return len(self._sessions)

    def _endpoint_name(self, cycle: Cycle) -> str | None:
        if not self._by_id:
            return decode_token(cycle.request.headers.get(self._header, ""))
        found = self._sessions.get(self._session_id(cycle))
        ttl_s = self._parameters.session_id_config.eviction_ttl_seconds
        return found[0] if found and cycle.now - found[1] <= ttl_s else None

    def _session_id(self, cycle: Cycle) -> str:
        for source in self._sources:
            if value := source.read(cycle):
                return value[:_MAX_ID_CHARS]
        return next(iter(cycle.session_ids.values()), "")[:_MAX_ID_CHARS]

    def _sweep(self, now: float) -> None:
        config = self._parameters.session_id_config
        is_due = now - self._swept_at >= config.eviction_sweep_seconds
        if not is_due and len(self._sessions) <= MAX_SESSIONS:
            return
        self._swept_at = now
        while self._sessions:
            session_id, (_, used_at) = next(iter(self._sessions.items()))
            is_old = now - used_at > config.eviction_ttl_seconds
            if not is_old and len(self._sessions) <= MAX_SESSIONS:
                break
            del self._sessions[session_id]


def decode_token(token: str) -> str | None:
    """Returns the name of the endpoint in a client's token; None if the token is invalid."""
    try:
        return base64.b64decode(token, validate=True).decode() or None
    except (binascii.Error, ValueError):
        return None
