"""`session-id-producer`: provides the id of a request's session to other plugins."""

from http.cookies import CookieError, SimpleCookie

from weft.epp.config.parameters import Kind, Name, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import SESSION_ID, Surroundings, plugin


class SessionIdParameters(Parameters, frozen=True, kw_only=True):
    """The header or the cookie that contains the session id; exactly one of them must be set."""

    header_name: Name | None = None
    cookie_name: Name | None = None

    def __post_init__(self) -> None:
        if (self.header_name is None) == (self.cookie_name is None):
            raise ValueError("needs exactly one of headerName and cookieName")


@plugin(SESSION_ID, Kind.PRODUCER, SessionIdParameters)
class SessionIdProducer:
    """Reads the id of a request's session for other plugins."""

    def __init__(self, parameters: SessionIdParameters, around: Surroundings) -> None:
        self._name = around.name
        self._header = parameters.header_name.lower() if parameters.header_name else None
        self._cookie = parameters.cookie_name

    def produce(self, cycle: Cycle) -> None:
        """Stores the session id in the cycle, if the request has one."""
        if value := self._read(cycle):
            cycle.session_ids[self._name] = value

    def _read(self, cycle: Cycle) -> str:
        if self._header is not None:
            return cycle.request.headers.get(self._header, "")
        try:
            cookies = SimpleCookie(cycle.request.headers.get("cookie", ""))
        except CookieError:
            return ""
        found = cookies.get(self._cookie or "")
        return found.value if found else ""
